"""The plan: every number a core is built from, settled before any storage exists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flare.contract.manifest import ExecutionGraph, Extent, Manifest
from flare.plan.catalog import CACHE_KINDS
from flare.plan.declarations import Declarations, prefix_rows
from flare.plan.memory import MemoryPlan
from flare.plan.shapes import Shape, batch_capacities, selected_shapes

DeviceName = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Plan:
    """What preparation will allocate and capture.

    Attributes:
        dtype: of weights and state; threads: CPU threads of a round, None for torch's choice.
        prepared: every graph `preparation.*` asks for; manifest: the subset `serving.*` selects, which the core holds.
        memory: bytes per item for that subset.
    """

    device: DeviceName
    dtype: str
    threads: int | None
    prepared: tuple[ExecutionGraph, ...]
    manifest: Manifest
    memory: MemoryPlan


@dataclass(frozen=True)
class Selection:
    """What serving takes from a prepared catalog.

    Attributes:
        concurrency: requests served at once; depth: most drafts of a round.
        fixed_width: the one width of every batch that admits it, or None.
        speculating: speculative rounds, or ordinary decoding.
        prefix_cache: prefixes are kept and restored.
    """

    concurrency: int
    depth: int
    fixed_width: int | None
    speculating: bool
    prefix_cache: bool


def selected_graphs(prepared: Sequence[ExecutionGraph], selection: Selection) -> tuple[ExecutionGraph, ...]:
    """The subset serving runs: one mode, its batch capacities, its depths or its fixed width; ids renumbered."""
    rounds = [graph for graph in prepared if graph.kind == "speculative"]
    speculating = selection.speculating and bool(rounds)
    shapes = selected_shapes(
        [_shape(graph) for graph in rounds], selection.concurrency, selection.depth, selection.fixed_width
    )
    batches = batch_capacities(selection.concurrency)

    def kept(graph: ExecutionGraph) -> bool:
        if graph.kind == "speculative":
            return speculating and _shape(graph) in shapes
        if graph.kind in CACHE_KINDS:
            return selection.prefix_cache
        return graph.speculation_enabled in (None, speculating) and graph.batch_capacity in batches

    return tuple(replace(graph, id=index) for index, graph in enumerate(filter(kept, prepared)))


def caches(graphs: Sequence[ExecutionGraph]) -> bool:
    """Whether the graphs can restore a prefix."""
    return any(graph.kind in CACHE_KINDS for graph in graphs)


def settled_graphs(graphs: Sequence[ExecutionGraph], extent: Extent) -> tuple[ExecutionGraph, ...]:
    """The graphs of a core of this extent: nothing can be restored where memory left no snapshot and pages need one."""
    restorable = extent.paged or extent.snapshots > 0
    kept = [graph for graph in graphs if restorable or graph.kind not in CACHE_KINDS]
    return tuple(replace(graph, id=index) for index, graph in enumerate(kept))


def only_pages(models: Iterable[Declarations], absorbs: bool) -> bool:
    """Whether a prefix can be resumed from its pages alone, at any page boundary.

    Args:
        models: what target and drafter declare; absorbs: whether the drafter keeps pairs, which lag a token behind.
    """
    return not absorbs and not any(prefix_rows(model.state) for model in models)


def scored_rows(graphs: Sequence[ExecutionGraph]) -> int:
    """Prompt tokens one graph can score; 0 where none does."""
    return max((graph.token_capacity for graph in graphs if graph.kind == "scored_prefill"), default=0)


def round_rows(graphs: Sequence[ExecutionGraph]) -> int:
    """Rows of the largest round, which logits and laws must hold."""
    return max((graph.rows for graph in graphs if graph.kind in ("decode", "speculative")), default=1)


def law_dtype(dtype: str) -> str:
    """Logits and laws are float32, or float64 where the whole core is."""
    return "float64" if dtype == "float64" else "float32"


def _shape(graph: ExecutionGraph) -> Shape:
    return Shape(graph.batch_capacity, graph.token_capacity)
