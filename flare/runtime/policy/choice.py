"""A policy's question and answer: the cohort it sees, the width it chooses, the outcome it learns from."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from flare.contract.frames import Source
from flare.contract.manifest import Manifest
from flare.errors import CapacityError, PlanError

Widths = Mapping[int, tuple[int, ...]]
EXPLAINED_CHOICES = 64  # that a policy can still explain


class LaneView(NamedTuple):
    """One lane before its round.

    Attributes:
        request: the request's id, the key of what is learned about it.
        drafts: drafts the host knows it could offer; for a learned drafter the largest depth.
        source: where these drafts come from.
        ceiling: most drafts the lane may offer (budget, context, grammar, the request's own limit); 0 drafts nothing.
    """

    request: int
    drafts: int
    source: Source
    ceiling: int

    @property
    def usable(self) -> int:
        """Drafts that a wide enough round would offer."""
        least = self.drafts if self.drafts < self.ceiling else self.ceiling
        return least if least > 0 else 0


class CohortView(NamedTuple):
    """The lanes of one round; `batch_capacity` may exceed their number, padded lanes emit nothing."""

    batch_capacity: int
    lanes: tuple[LaneView, ...]


class Choice(NamedTuple):
    """The next round.

    Attributes:
        width: of the round; reason: why, to show.
        lanes: which lanes of the cohort take part, by index; the first lane always does, the others may wait a round.
        ceilings: the most drafts of each of them.
    """

    width: int
    lanes: tuple[int, ...]
    ceilings: tuple[int, ...]
    reason: str


class LaneOutcome(NamedTuple):
    """What one lane's record says about its drafts."""

    request: int
    source: Source
    offered: int
    accepted: int


class RoundOutcome(NamedTuple):
    """One settled round; a failed or cancelled one is never reported.

    Attributes:
        seconds: complete-round time; None when it was not measured by itself (a prefill ran inside, say).
        lanes: (request, source, offered, accepted) of every live lane.
    """

    batch_capacity: int
    width: int
    seconds: float | None
    lanes: tuple[LaneOutcome | tuple[int, Source, int, int], ...]


class Option(NamedTuple):
    """One width as the policy saw it: tokens it was expected to emit over all lanes, its cost, rounds behind that."""

    width: int
    emitted: float
    seconds: float
    measured: int

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.emitted / self.seconds


class Explanation(NamedTuple):
    """Why one choice was made.

    Attributes:
        options: the widths that were compared for the lanes that take part; empty where nothing was compared.
        budget_seconds: saved time that exploration may still spend.
    """

    choice: Choice
    options: tuple[Option, ...] = ()
    budget_seconds: float = 0.0

    def __str__(self) -> str:
        compared = ", ".join(
            f"W{option.width}: {option.emitted:.2f} tokens / {option.seconds * 1e3:.2f} ms" for option in self.options
        )
        return f"width {self.choice.width} ({self.choice.reason})" + (f"; {compared}" if compared else "")


class Policy(Protocol):
    """Chooses each round's width among the prepared ones."""

    def choose(self, cohort: CohortView) -> Choice:
        """The next round's width and ceilings; never waits and never asks the device.

        Raises:
            CapacityError: no graph was prepared for this batch capacity.
        """
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn from one settled round."""
        ...

    def forget(self, request: int) -> None:
        """Drop what is kept about a retired request."""
        ...

    def explain(self) -> tuple[Explanation, ...]:
        """Why the last choices were made, newest last."""
        ...


def prepared_widths(manifest: Manifest) -> dict[int, tuple[int, ...]]:
    """Widths of every batch capacity, ascending, from the rectangular decode and speculative graphs.

    Raises:
        PlanError: a batch capacity without a width-one graph, which any round may need.
    """
    found: dict[int, set[int]] = {}
    for graph in (*manifest.of_kind("decode"), *manifest.of_kind("speculative")):
        if graph.rows == graph.batch_capacity * graph.token_capacity:
            found.setdefault(graph.batch_capacity, set()).add(graph.token_capacity)
    return checked_widths({batch: tuple(sorted(widths)) for batch, widths in sorted(found.items())})


def checked_widths(widths_by_batch: Widths) -> dict[int, tuple[int, ...]]:
    """The same widths, ascending, once every batch capacity is known to have width one."""
    for batch, widths in widths_by_batch.items():
        if 1 not in widths:
            raise PlanError(f"Batch capacity {batch} has no width-one graph; prepared: {sorted(widths)}.")
    return {batch: tuple(sorted(set(widths))) for batch, widths in widths_by_batch.items()}


def widths_of(widths_by_batch: Widths, batch_capacity: int) -> tuple[int, ...]:
    """The prepared widths of one batch capacity, or a CapacityError that names the prepared ones."""
    widths = widths_by_batch.get(batch_capacity)
    if widths is None:
        raise CapacityError(f"No round is prepared for batch {batch_capacity}; prepared: {sorted(widths_by_batch)}.")
    return widths


def capacity_of(widths_by_batch: Widths, lanes: int) -> int:
    """The smallest prepared batch capacity that holds so many lanes."""
    return min(batch for batch in widths_by_batch if batch >= lanes)


def choice_of(cohort: CohortView, width: int, reason: str, lanes: tuple[int, ...] | None = None) -> Choice:
    """One width for the named lanes, else for all; each is bounded by it, by its drafts and by its own ceiling."""
    chosen = tuple(range(len(cohort.lanes))) if lanes is None else lanes
    most = width - 1
    ceilings = [usable if (usable := cohort.lanes[lane].usable) < most else most for lane in chosen]
    return Choice(width, chosen, tuple(ceilings), reason)
