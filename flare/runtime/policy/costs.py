"""Costs: how long a complete round of each shape takes, from measured rounds.

A measured shape costs the running mean of its rounds, each clipped to what is usual: no hiccup prices it. Shapes never
measured lie on the line through their measured neighbours. Within one batch capacity a wider round never costs less:
what noise puts out of order is pooled.
"""

from statistics import median
from typing import NamedTuple

from flare.runtime.policy.choice import Widths

MEMORY_ROUNDS = 64  # rounds after which an old one weighs 1/e
FEW_ROUNDS = 5  # the median of so many prices a shape at first, and after a lasting change
SEED_ROUNDS = 8  # what a warm-up timing counts for: it is a median of many replays
SPREAD_SHARE = 1.0 / 16
CLIP_DEVIATIONS = 3.0
FIRST_DEVIATION = 0.2  # of the mean, before a shape's own spread is known
PRIOR_SECONDS = 0.01  # of a round before any measurement; only ratios matter then
FIXED_ROWS = 32  # before any two widths were measured, so many rows cost as much as the constant part of a round
PRIOR_WEIGHT = 0.25  # of one measured round, when an unmeasured width is pooled with a measured one


class Shape(NamedTuple):
    """A round's batch capacity B and width W."""

    batch_capacity: int
    width: int


class _Measured:
    """One shape's rounds in seconds: their median while there are few, then a clipped running mean."""

    __slots__ = ("deviation", "far", "mean", "rounds")

    def __init__(self, seconds: float, rounds: int = 1) -> None:
        self.mean, self.rounds, self.far = seconds, rounds, [seconds]
        self.deviation = FIRST_DEVIATION * seconds

    def add(self, seconds: float) -> None:
        """Move towards one more round. Far ones are clipped, and when they keep coming the mean starts anew there."""
        self.rounds += 1
        bound = CLIP_DEVIATIONS * self.deviation
        error = min(max(seconds - self.mean, -bound), bound)
        few = self.rounds <= FEW_ROUNDS
        if few or abs(error) == bound:
            self.far.append(seconds)
        else:
            self.far.clear()
        if few:
            self.mean = median(self.far)
        elif len(self.far) == FEW_ROUNDS:
            self.mean, self.rounds, self.deviation = median(self.far), FEW_ROUNDS, FIRST_DEVIATION * median(self.far)
            self.far.clear()
        else:
            share = 1.0 / min(self.rounds, MEMORY_ROUNDS)
            self.mean += share * error
            self.deviation += max(share, SPREAD_SHARE) * (
                1.25 * abs(error) - self.deviation
            )  # E|x| = 0.8 σ, normal law


class RoundCosts:
    """Seconds of a complete round per shape."""

    def __init__(self, widths_by_batch: Widths) -> None:
        self._widths = widths_by_batch
        self._measured: dict[int, dict[int, _Measured]] = {batch: {} for batch in widths_by_batch}
        self._rows: dict[int, dict[int, float]] = {}

    def seed(self, shape: tuple[int, int], seconds: float) -> None:
        """Start a shape from its warm-up timing, which later rounds move like any other estimate."""
        self._measured[shape[0]][shape[1]] = _Measured(seconds, SEED_ROUNDS)
        self._rows.clear()

    def observe(self, shape: tuple[int, int], seconds: float) -> None:
        """Count one measured round.

        Raises:
            ValueError: no time passed.
        """
        if seconds <= 0:
            raise ValueError(f"A round of {seconds} seconds was not measured.")
        batch, width = shape
        measured = self._measured[batch]
        if width in measured:
            measured[width].add(seconds)
            self._rows.pop(batch, None)
        else:
            measured[width] = _Measured(seconds)
            self._rows.clear()  # what this batch teaches prices the unmeasured widths of others

    def measured(self, shape: tuple[int, int]) -> int:
        """Rounds behind the cost of a shape."""
        measured = self._measured[shape[0]].get(shape[1])
        return measured.rounds if measured is not None else 0

    def of_batch(self, batch_capacity: int) -> dict[int, float]:
        """Seconds of every prepared width at one batch capacity, never falling with the width."""
        if batch_capacity not in self._rows:
            self._rows[batch_capacity] = self._priced(batch_capacity)
        return self._rows[batch_capacity]

    def _priced(self, batch: int) -> dict[int, float]:
        widths, measured = self._widths[batch], self._measured[batch]
        known = {width: measured[width].mean for width in widths if width in measured}
        priced = known if len(known) == len(widths) else self._interpolated(batch, known)
        seconds = list(priced.values())
        if seconds == sorted(seconds):
            return priced
        weights = [min(self.measured((batch, width)), MEMORY_ROUNDS) or PRIOR_WEIGHT for width in widths]
        return dict(zip(widths, never_falling(seconds, weights), strict=True))

    def _interpolated(self, batch: int, known: dict[int, float]) -> dict[int, float]:
        """Seconds of every width, from those that were measured."""
        widths, (slope, constant) = self._widths[batch], self._line(batch)
        if not known:
            return {width: constant + slope * batch * width for width in widths}
        return {width: known[width] if width in known else _between(known, width, slope * batch) for width in widths}

    def _line(self, batch: int) -> tuple[float, float]:
        """Seconds per row and the constant part: from the nearest batch capacity whose widths were measured."""
        by_distance = sorted(self._measured, key=lambda other: abs(other - batch))
        single: tuple[float, float] | None = None
        for other in by_distance:
            points = sorted((other * width, each.mean) for width, each in self._measured[other].items())
            if len(points) > 1:
                slope = max((points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]), 0.0)
                return slope, max(points[0][1] - slope * points[0][0], 0.0)
            if points and single is None:
                constant = points[0][1] / (1 + points[0][0] / FIXED_ROWS)
                single = (constant / FIXED_ROWS, constant)
        return single or (PRIOR_SECONDS / FIXED_ROWS, PRIOR_SECONDS)


def _between(known: dict[int, float], width: int, slope: float) -> float:
    """Seconds of an unmeasured width: on the line between its measured neighbours, or `slope` per width beyond them."""
    below = max((each for each in known if each < width), default=None)
    above = min((each for each in known if each > width), default=None)
    if below is None:
        assert above is not None
        return max(known[above] - slope * (above - width), 0.25 * known[above])
    if above is None:
        return known[below] + slope * (width - below)
    return known[below] + (known[above] - known[below]) * (width - below) / (above - below)


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
