"""A histogram as plain numbers, which can be exposed under several names."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 600.0)


class Distribution:
    """Counts of observed seconds between bounds.

    Attributes:
        total: sum of what was observed; count: how often.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """Args: bounds: ascending; a value belongs to the first bound that is not below it."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """One series of a family, its buckets cumulative as Prometheus wants them."""
        running, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            running += count
            buckets.append((floatToGoString(bound), running))
        family.add_metric(labels, buckets, self.total)
