"""Fixed policy: one width where a graph of it was prepared, width one elsewhere."""

from collections import deque

from flare.errors import ConfigError
from flare.runtime.policy.choice import (
    EXPLAINED_CHOICES,
    Choice,
    CohortView,
    Explanation,
    RoundOutcome,
    Widths,
    checked_widths,
    choice_of,
    widths_of,
)


def fixed(widths_by_batch: Widths, fixed_width: int) -> "Fixed":
    """The policy that uses `fixed_width` wherever it was prepared.

    Raises:
        ConfigError: no batch capacity has that width.
    """
    widths = checked_widths(widths_by_batch)
    prepared = sorted({width for row in widths.values() for width in row})
    if fixed_width not in prepared:
        nearest = min(prepared, key=lambda width: abs(width - fixed_width))
        raise ConfigError(f"serving.fixed_width={fixed_width} is not prepared: {prepared}. Nearest: {nearest}.")
    return Fixed(widths, fixed_width)


class Fixed:
    """Learns nothing; a round where no lane has a draft is width one here too."""

    def __init__(self, widths_by_batch: dict[int, tuple[int, ...]], fixed_width: int) -> None:
        self._widths = widths_by_batch
        self._width = fixed_width
        self._explained: deque[Explanation] = deque(maxlen=EXPLAINED_CHOICES)

    def choose(self, cohort: CohortView) -> Choice:
        """The fixed width, or one with the reason why not."""
        prepared = self._width in widths_of(self._widths, cohort.batch_capacity)
        if not any(lane.usable for lane in cohort.lanes):
            choice = choice_of(cohort, 1, "no lane has a draft")
        elif prepared:
            choice = choice_of(cohort, self._width, "fixed width")
        else:
            choice = choice_of(cohort, 1, f"fixed width {self._width} has no graph at batch {cohort.batch_capacity}")
        self._explained.append(Explanation(choice))
        return choice

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing is learned."""

    def forget(self, request: int) -> None:
        """Nothing is kept."""

    def explain(self) -> tuple[Explanation, ...]:
        """The last choices; no widths are compared."""
        return tuple(self._explained)
