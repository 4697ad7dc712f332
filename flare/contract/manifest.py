"""The manifest: every prepared graph, as the runtime sees it (execution ABI 6)."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from flare.errors import PlanError

ABI = 6
PAGE_TOKENS = 64

Kind = Literal[
    "prefill", "scored_prefill", "decode", "resume", "mixed", "init", "restore", "snapshot", "vision", "speculative"
]
DraftSource = Literal["mtp", "block", "copy", "mtp+copy", "none"]

OPERATION_IDS: dict[str, int] = {
    "prefill": 1,
    "scored_prefill": 2,
    "decode": 3,
    "resume": 4,
    "mixed": 5,
    "init": 6,
    "restore": 7,
    "snapshot": 8,
    "vision": 9,
    "speculative": 12,
}
# A proposal or a verification alone is not a transaction: these never become graphs.
REFUSED_OPERATIONS: dict[int, str] = {10: "proposal", 11: "verification", 13: "draft commit"}


@dataclass(frozen=True)
class ExecutionGraph:
    """One prepared graph. Token counts are per request; `packed_token_capacity` 0 means the rectangle B × W.

    Attributes:
        id: index in the manifest, the number `Device.submit` takes.
        kind: what the graph does; see DESIGN 5.
        batch_capacity: lanes B.
        token_capacity: prompt tokens of a prefill or resume chunk, the width W of a decode or speculative graph.
        draft_tokens: depth D, verify_tokens: width W; None where the graph drafts nothing by design.
        speculation_enabled: True or False for one serving mode, None for graphs that both modes share.
        confidence_width: proposal confidences returned per lane, 0 for none.
    """

    id: int
    kind: Kind
    batch_capacity: int
    token_capacity: int
    sampling_mode: Literal["general"] = "general"
    draft_tokens: int | None = None
    verify_tokens: int | None = None
    draft_source: DraftSource | None = None
    speculation_enabled: bool | None = None
    packed_token_capacity: int = 0
    confidence_width: int = 0

    @property
    def rows(self) -> int:
        """Physical target rows P."""
        return self.packed_token_capacity or self.batch_capacity * self.token_capacity


@dataclass(frozen=True)
class Extent:
    """The sizes every frame and table of a core agrees on.

    Attributes:
        lanes: largest batch capacity; slots: prepared request slots (the null slot is index `slots`).
        pages: pages of paged state (the null page is index `pages`); pages_per_request: entries of a page table row.
        width: largest verification width, also the token fields of a record.
        chunk: largest prefill capacity; context: most tokens of one request, prompt and output together.
        logprobs: most alternatives returned beside the chosen token.
        snapshots: rows of slot state behind the null slot that keep a prefix's state; 0 without a prefix cache.
        scored_chunk: prompt tokens one chunk can score; 0 where prompt log-probabilities are not prepared.
        paged: all state that outlives a round is paged, so a cached prefix can be resumed at every page boundary
            without a snapshot.
    """

    lanes: int
    slots: int
    pages: int
    pages_per_request: int
    width: int
    chunk: int
    context: int
    vocab: int
    logprobs: int = 20
    snapshots: int = 0
    scored_chunk: int = 0
    paged: bool = False

    def snapshot_row(self, snapshot: int) -> int:
        """Where snapshot 0..snapshots − 1 lies among the rows of slot state."""
        return self.slots + 1 + snapshot

    @property
    def null_slot(self) -> int:
        """The slot padded lanes name: never given out, never read."""
        return self.slots

    @property
    def null_page(self) -> int:
        """The page inactive rows write to: never given out, never read."""
        return self.pages

    @property
    def mask_words(self) -> int:
        """32-bit words of one token mask."""
        return (self.vocab + 31) // 32


@dataclass(frozen=True)
class Manifest:
    """All graphs of a core; `graphs[i].id == i`."""

    graphs: tuple[ExecutionGraph, ...]
    extent: Extent
    abi: int = ABI

    def of_kind(self, kind: Kind) -> tuple[ExecutionGraph, ...]:
        """The graphs of one kind, in manifest order."""
        return tuple(graph for graph in self.graphs if graph.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """`{"abi": 6, "graphs": [...]}` with one object per graph and its operation id."""
        graphs = [{"operation": OPERATION_IDS[graph.kind], **asdict(graph)} for graph in self.graphs]
        return {"abi": self.abi, "graphs": graphs}


def read_graphs(document: dict[str, Any]) -> tuple[ExecutionGraph, ...]:
    """The graphs of a `manifest.json`.

    Raises:
        PlanError: another ABI, an unknown kind, or one of the operations that are never graphs, by name.
    """
    if document.get("abi") != ABI:
        raise PlanError(f"This manifest speaks ABI {document.get('abi')}; Flare reads ABI {ABI}.")
    return tuple(_graph(entry) for entry in _entries(document))


def _entries(document: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for entry in document["graphs"]:
        yield dict(entry)


def _graph(entry: dict[str, Any]) -> ExecutionGraph:
    operation = entry.pop("operation", None)
    if operation in REFUSED_OPERATIONS:
        raise PlanError(
            f"Operation {operation} ({REFUSED_OPERATIONS[operation]}) is not a graph: only whole rounds are."
        )
    if entry["kind"] not in get_args(Kind):
        raise PlanError(f"Unknown graph kind '{entry['kind']}'. Allowed: {', '.join(get_args(Kind))}.")
    if operation is not None and operation != OPERATION_IDS[entry["kind"]]:
        raise PlanError(f"Operation {operation} is not {entry['kind']} ({OPERATION_IDS[entry['kind']]}).")
    return ExecutionGraph(**entry)
