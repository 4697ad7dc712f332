"""A launch: one graph with the requests it serves and what each lane is offered."""

from dataclasses import dataclass
from itertools import repeat

from flare.contract.manifest import ExecutionGraph
from flare.runtime.copies import Offer
from flare.runtime.memory.radix import NONE
from flare.runtime.requests import Request


@dataclass(frozen=True, slots=True)
class Launch:
    """What one submission will do.

    Attributes:
        requests: in lane order; fewer than the graph's batch capacity leaves padded lanes.
        start, count: tokens of a prefill or resume chunk.
        offers, ceilings: per lane of a speculative round, else empty.
        rows: the snapshot each lane writes or restores, NONE for none; empty where no lane does.
        restored: whether a restore samples the first token.
    """

    graph: ExecutionGraph
    requests: tuple[Request, ...]
    start: int = 0
    count: int = 0
    offers: tuple[Offer, ...] = ()
    ceilings: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    restored: bool = False

    @property
    def samples(self) -> bool:
        """Whether completion records carry tokens."""
        kind = self.graph.kind
        if kind == "scored_prefill":
            return self.start + self.count == self.requests[0].prompt_tokens
        return self.restored if kind == "restore" else kind not in ("init", "resume", "snapshot")

    @property
    def is_round(self) -> bool:
        return self.graph.kind in ("decode", "speculative")

    @property
    def is_chunk(self) -> bool:
        return self.graph.kind in ("prefill", "scored_prefill", "resume")

    def row(self, lane: int) -> int:
        """The snapshot that a lane names, or NONE."""
        return self.rows[lane] if self.rows else NONE

    def depart(self) -> None:
        """Count the launch among those that name its requests."""
        self._count(1)

    def land(self) -> None:
        """It names them no more."""
        self._count(-1)

    def _count(self, sign: int) -> None:
        if not self.samples:
            for request in self.requests:
                request.queued.launches += sign
            return
        rounds = sign * self.is_round
        for request, ceiling in zip(self.requests, self.ceilings or repeat(0), strict=False):
            queued = request.queued
            queued.launches += sign
            queued.samplings += sign
            queued.rounds += rounds
            queued.tokens += sign * (ceiling + 1)
