"""A launch: one graph with the requests it serves and what each lane is offered."""

from dataclasses import dataclass

from flare.contract.manifest import ExecutionGraph
from flare.runtime.copies import Offer
from flare.runtime.requests import Request


@dataclass(frozen=True, slots=True)
class Launch:
    """What one submission will do.

    Attributes:
        requests: in lane order; fewer than the graph's batch capacity leaves padded lanes.
        start, count: prompt tokens of a prefill or resume chunk.
        offers, ceilings: per lane of a speculative round, else empty.
    """

    graph: ExecutionGraph
    requests: tuple[Request, ...]
    start: int = 0
    count: int = 0
    offers: tuple[Offer, ...] = ()
    ceilings: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        """Whether completion records carry tokens."""
        return self.graph.kind not in ("init", "resume")

    @property
    def is_round(self) -> bool:
        return self.graph.kind in ("decode", "speculative")
