"""The graphs a core holds, looked up by what has to be done next."""

from collections.abc import Sequence

from flare.contract.manifest import ExecutionGraph, Kind, Manifest
from flare.errors import CapacityError

LEARNED_SOURCES = ("mtp", "block", "mtp+copy")


class Catalog:
    """A manifest's graphs of one serving mode.

    Attributes:
        speculative: rounds are speculative graphs; else ordinary decoding.
        lanes: most requests in one round.
        learned: the device proposes drafts of its own beside the host's copies.
        restore, snapshot: None where no prefix can be kept.
        widths: round widths of each batch capacity, ascending. Width one is always listed: where no such graph was kept
            the narrowest one runs with no drafts.
    """

    def __init__(self, manifest: Manifest, speculative: bool) -> None:
        self.speculative = speculative and bool(manifest.of_kind("speculative"))
        self._graphs = [graph for graph in manifest.graphs if graph.speculation_enabled in (None, self.speculative)]
        scored = self._of_kind("scored_prefill")
        self._scored = scored[0] if scored else None
        rounds = self._of_kind("speculative" if self.speculative else "decode")
        self.init = _first(self._of_kind("init"), "init")
        self.restore = next(iter(self._of_kind("restore")), None)
        self.snapshot = next(iter(self._of_kind("snapshot")), None)
        self._prefill = self._of_kind("prefill")
        self._resume = self._of_kind("resume")
        for graphs, what in ((self._prefill, "prefill"), (self._resume, "resume"), (rounds, "decode or speculative")):
            _first(graphs, what)
        self.learned = any(graph.draft_source in LEARNED_SOURCES for graph in rounds)
        self._rounds: dict[int, dict[int, ExecutionGraph]] = {}
        for graph in sorted(rounds, key=lambda graph: (graph.batch_capacity, graph.token_capacity)):
            self._rounds.setdefault(graph.batch_capacity, {})[graph.token_capacity] = graph
        self.lanes = max(self._rounds)
        self._capacities = [min(b for b in self._rounds if b >= requests) for requests in range(self.lanes + 1)]
        self.widths = {batch: tuple(sorted({1, *graphs})) for batch, graphs in self._rounds.items()}

    @property
    def chunk_tokens(self) -> int:
        """Most prompt tokens of one chunk."""
        return self._prefill[-1].token_capacity

    @property
    def scored(self) -> bool:
        """Whether prompts can be scored."""
        return self._scored is not None

    def chunk(self, left_tokens: int, scored: bool = False) -> tuple[ExecutionGraph, int]:
        """The graph for the next prompt chunk and the tokens it takes; only the last chunk samples."""
        if scored and self._scored is not None:
            return self._scored, min(left_tokens, self._scored.token_capacity)
        if left_tokens <= self.chunk_tokens:
            graphs, count = self._prefill, left_tokens
        else:
            graphs, count = self._resume, min(left_tokens - 1, self._resume[-1].token_capacity)
        return next(graph for graph in graphs if graph.token_capacity >= count), count

    def resume(self, left_tokens: int) -> tuple[ExecutionGraph, int]:
        """The graph for the next of these tokens and how many it takes, where none of them is sampled after."""
        count = min(left_tokens, self._resume[-1].token_capacity)
        return next(graph for graph in self._resume if graph.token_capacity >= count), count

    def batch_capacity(self, requests: int) -> int:
        """The smallest prepared batch that holds so many requests."""
        return self._capacities[requests]

    def round(self, batch: int, width: int) -> ExecutionGraph:
        """The graph of one shape, or the narrowest of its batch where width one was not kept."""
        graphs = self._rounds[batch]
        return graphs[width] if width in graphs else next(iter(graphs.values()))

    def _of_kind(self, kind: Kind) -> list[ExecutionGraph]:
        return sorted((graph for graph in self._graphs if graph.kind == kind), key=lambda graph: graph.token_capacity)


def _first(graphs: Sequence[ExecutionGraph], what: str) -> ExecutionGraph:
    if not graphs:
        raise CapacityError(f"This core holds no {what} graph for its serving mode.")
    return graphs[0]
