"""Costs: how long a complete round of each shape takes, from measured rounds.

A shape costs the median of its recent rounds. Shapes never measured are priced like those that were, by their rows.
Within one batch capacity a wider round never costs less: what noise puts out of order is pooled.
"""

from collections import deque
from statistics import median
from typing import NamedTuple

from flare.runtime.policy.choice import Widths

WINDOW_ROUNDS = 25
PRIOR_SECONDS = 0.01  # the unit before any measurement; only ratios matter then
FIXED_ROWS = 32  # a round's constant part is expected to cost as much as this many rows
PRIOR_WEIGHT = 0.25  # of one measured round, when an unmeasured width is pooled with a measured one


class Shape(NamedTuple):
    """A round's batch capacity B and width W."""

    batch_capacity: int
    width: int

    @property
    def units(self) -> float:
        """Prior cost in units of the constant part."""
        return 1.0 + self.batch_capacity * self.width / FIXED_ROWS


class RoundCosts:
    """Seconds of a complete round per shape."""

    def __init__(self, widths_by_batch: Widths) -> None:
        self._widths = widths_by_batch
        self._rounds: dict[Shape, deque[float]] = {}
        self._medians: dict[Shape, float] = {}
        self._rows: dict[int, dict[int, float]] = {}

    def seed(self, shape: tuple[int, int], seconds: float) -> None:
        """Count a warm-up round; three or more of each shape keep one hiccup from pricing it."""
        self.observe(shape, seconds)

    def observe(self, shape: tuple[int, int], seconds: float) -> None:
        """Count one measured round.

        Raises:
            ValueError: no time passed.
        """
        if seconds <= 0:
            raise ValueError(f"A round of {seconds} seconds was not measured.")
        key = Shape(*shape)
        rounds = self._rounds.setdefault(key, deque(maxlen=WINDOW_ROUNDS))
        rounds.append(seconds)
        self._medians[key] = median(rounds)
        self._rows.clear()

    def measured(self, shape: tuple[int, int]) -> int:
        """Rounds behind the cost of a shape, at most the window."""
        return len(self._rounds.get(Shape(*shape), ()))

    def of_batch(self, batch_capacity: int) -> dict[int, float]:
        """Seconds of every prepared width at one batch capacity, never falling with the width."""
        if batch_capacity not in self._rows:
            widths = self._widths[batch_capacity]
            shapes = [Shape(batch_capacity, width) for width in widths]
            unit = self._unit(batch_capacity)
            seconds = [self._medians.get(shape, unit * shape.units) for shape in shapes]
            weights = [self.measured(shape) or PRIOR_WEIGHT for shape in shapes]
            self._rows[batch_capacity] = dict(zip(widths, never_falling(seconds, weights), strict=True))
        return self._rows[batch_capacity]

    def _unit(self, batch_capacity: int) -> float:
        """Seconds per prior unit: of this batch capacity where it was measured, else of all that were."""
        ratios = {shape: seconds / shape.units for shape, seconds in self._medians.items()}
        near = [ratio for shape, ratio in ratios.items() if shape.batch_capacity == batch_capacity]
        if near or ratios:
            return median(near or ratios.values())
        return PRIOR_SECONDS


def never_falling(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence in weighted least squares that never falls.

    Source: pool adjacent violators (Ayer et al. 1955).
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, heavy, members = blocks.pop()
            total = heavy + block[1]
            block = ((mean * heavy + block[0] * block[1]) / total, total, members + block[2])
        blocks.append(block)
    return [mean for mean, _, members in blocks for _ in range(members)]
