"""The catalog: every graph a core prepares, in the order the manifest numbers them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flare.contract.manifest import DraftSource, ExecutionGraph, Kind
from flare.plan.shapes import Shape, batch_capacities


@dataclass(frozen=True)
class CatalogRequest:
    """What the catalog depends on.

    Attributes:
        concurrency: requests served at once.
        prefill_capacities: chunk sizes, increasing.
        shapes: speculative shapes to prepare; empty when nothing drafts.
        ordinary: whether one-token decode graphs exist (not with `mtp_only`).
        draft_source: what the drafter proposes.
        drafter_absorbs: whether prefill must feed the drafter, which needs its own prefill graphs.
        confidence_width: confidences a round returns per lane.
        prompt_logprobs: whether prompt chunks can be scored.
    """

    concurrency: int
    prefill_capacities: Sequence[int]
    shapes: Sequence[Shape]
    ordinary: bool
    draft_source: DraftSource
    drafter_absorbs: bool
    confidence_width: int = 0
    prompt_logprobs: bool = False


def catalog(request: CatalogRequest) -> tuple[ExecutionGraph, ...]:
    """All graphs, ids equal to their index."""
    return tuple(replace(graph, id=index) for index, graph in enumerate(_graphs(request)))


def _graphs(request: CatalogRequest) -> Iterator[ExecutionGraph]:
    yield ExecutionGraph(0, "init", 1, 0)
    for enabled in _prefill_modes(request):
        for kind in _PREFILL_KINDS:
            for tokens in request.prefill_capacities:
                yield ExecutionGraph(0, kind, 1, tokens, speculation_enabled=enabled)
        if request.prompt_logprobs:
            # One capacity: its completion arrays, a row per prompt token, are held twice.
            smallest = min(request.prefill_capacities)
            yield ExecutionGraph(0, "scored_prefill", 1, smallest, speculation_enabled=enabled)
    if request.ordinary:
        for batch in batch_capacities(request.concurrency):
            yield ExecutionGraph(0, "decode", batch, 1, speculation_enabled=False)
    for shape in request.shapes:
        yield ExecutionGraph(
            0,
            "speculative",
            shape.batch,
            shape.width,
            draft_tokens=shape.depth,
            verify_tokens=shape.width,
            draft_source=request.draft_source if shape.depth else "none",
            speculation_enabled=True,
            confidence_width=request.confidence_width,
        )
    for kind in CACHE_KINDS:
        yield ExecutionGraph(0, kind, 1, 0)


CACHE_KINDS: tuple[Kind, ...] = ("snapshot", "restore")
"""What keeps a prefix and brings it back."""

_PREFILL_KINDS: tuple[Kind, ...] = ("prefill", "resume")


def _prefill_modes(request: CatalogRequest) -> tuple[bool | None, ...]:
    """A drafter with state of its own needs prefill graphs that feed it, beside those that do not."""
    if not request.drafter_absorbs:
        return (None,)
    ordinary = (False,) if request.ordinary else ()
    return (*ordinary, True) if request.shapes else ordinary
