"""The last minutes second by second: tokens, rounds by width, drafts and what a round cost."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from flare.server.observer import Step

if TYPE_CHECKING:
    from flare.server.server import ServedModel

KEPT_SECONDS = 180


@dataclass(slots=True)
class Second:
    """What came in one second.

    Attributes:
        index: whole seconds since the timeline began.
        emitted: tokens of rounds; `tokens` also has those that prefills sampled.
        steps: engine steps in which a round settled; step_s: the seconds they took.
        running, waiting: completions with and without a slot, after the last step.
    """

    index: int
    tokens: int = 0
    emitted: int = 0
    offered: int = 0
    accepted: int = 0
    steps: int = 0
    step_s: float = 0.0
    running: int = 0
    waiting: int = 0
    widths: Counter[int] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        """As the page reads it; `round_ms` is null where no round settled."""
        return {
            "index": self.index,
            "tokens": self.tokens,
            "emitted": self.emitted,
            "offered": self.offered,
            "accepted": self.accepted,
            "round_ms": 1e3 * self.step_s / self.steps if self.steps else None,
            "running": self.running,
            "waiting": self.waiting,
            "widths": dict(sorted(self.widths.items())),
        }


class Timeline:
    """An observer that keeps the seconds in which something came; the others are not stored."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Args: clock: seconds."""
        self._clock = clock
        self._began_s = clock()
        self._seconds: deque[Second] = deque()

    @property
    def now(self) -> int:
        """The index of the current second."""
        return int(self._clock() - self._began_s)

    def loaded(self, model: "ServedModel") -> None:
        """Nothing to keep."""

    def received(self, route: str) -> None:
        """Nothing to keep."""

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Nothing to keep."""

    def stepped(self, step: Step) -> None:
        second = self._current()
        rounds = [row for delivery in step.deliveries for row in delivery.rounds]
        if rounds:
            second.steps += 1
            second.step_s += step.seconds
        for row in rounds:
            second.widths[row.width] += 1
            second.emitted += row.emitted
            second.offered += row.offered
            second.accepted += row.accepted
        second.tokens += sum(len(each.event.token_ids) for each in step.deliveries if each.event is not None)
        second.running, second.waiting = step.stats.running, step.stats.waiting

    def since(self, index: int) -> list[dict[str, Any]]:
        """The kept seconds from `index` on, oldest first; the last one may still grow."""
        return [second.document() for second in self._seconds if second.index >= index]

    def _current(self) -> Second:
        now = self.now
        if not self._seconds or self._seconds[-1].index != now:
            self._seconds.append(Second(now))
            while self._seconds[0].index <= now - KEPT_SECONDS:
                self._seconds.popleft()
        return self._seconds[-1]
