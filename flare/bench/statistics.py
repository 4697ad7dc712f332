"""What samples say: medians, quartiles, bootstrap intervals, and whether a text runs in circles."""

import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

RESAMPLES = 2000
GRAM_TOKENS = 8
LOOPING_SHARE = 0.2


class Estimate(NamedTuple):
    """A median with its interval, and how many samples it stands on."""

    median: float
    low: float
    high: float
    samples: int


def bootstrap(samples: Sequence[float], confidence: float = 0.95, seed: int = 0) -> Estimate | None:
    """Median with its percentile-bootstrap interval; None without samples, a point where there is only one.

    Source: Efron 1979; the same seed gives the same interval.
    """
    if not samples:
        return None
    draw = random.Random(seed)
    medians = sorted(median(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    cut = round((1 - confidence) / 2 * RESAMPLES)
    return Estimate(median(samples), medians[cut], medians[-1 - cut], len(samples))


def quartiles(samples: Sequence[float]) -> Estimate | None:
    """Median with the first and third quartile, linearly interpolated; None without samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    return Estimate(median(ordered), _quantile(ordered, 0.25), _quantile(ordered, 0.75), len(ordered))


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which this share of the samples lies, linearly interpolated; needs one sample."""
    return _quantile(sorted(samples), share)


def repeated_share(tokens: Sequence[int], length: int = GRAM_TOKENS) -> float:
    """Share of the runs of `length` tokens that stood in the text before."""
    runs = [tuple(tokens[begin : begin + length]) for begin in range(len(tokens) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def looping(share: float) -> bool:
    """Whether a text with this share of repeated runs measures the loop and not the work."""
    return share > LOOPING_SHARE


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
