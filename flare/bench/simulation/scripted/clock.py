"""Simulated time: a clock that only moves when told, and what each graph costs on it."""

from collections.abc import Callable

from flare.contract.manifest import ExecutionGraph

Costs = Callable[[ExecutionGraph, int], float]
"""Seconds of one replay, from its graph and the lanes it names."""

BASE_S = 1e-3
ROW_S = 5e-5
TABLE_S = 2e-4  # init, snapshot and restore move rows of state and run no target


class Clock:
    """Seconds since the simulation began; calling it reads it, as `perf_counter` is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    def reach(self, moment_s: float) -> None:
        """Wait until a moment; one that has passed changes nothing."""
        self.now_s = max(self.now_s, moment_s)


def linear_costs(graph: ExecutionGraph, lanes: int) -> float:  # noqa: ARG001  a captured graph runs its padded lanes too
    """A fixed part and a part per physical row."""
    return BASE_S + ROW_S * graph.rows if graph.token_capacity else TABLE_S
