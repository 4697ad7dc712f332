"""The catalog a scripted device holds: the shapes of a small core, with or without learned drafts and snapshots."""

from dataclasses import dataclass, replace

from flare.contract.manifest import PAGE_TOKENS, DraftSource, ExecutionGraph, Extent, Kind, Manifest


@dataclass(frozen=True)
class Sizes:
    """What a scripted core is prepared for; small, so that every resource runs out now and then.

    Attributes:
        rows: most physical rows of a round wider than one.
        learned: the device drafts for itself, and its drafter keeps history in pages.
        paged: nothing but pages outlives a round.
        scored: prompts can be scored.
    """

    lanes: int = 4
    slots: int = 4
    pages: int = 16
    snapshots: int = 0
    widths: tuple[int, ...] = (1, 2, 4, 6, 8)
    rows: int = 32
    chunks: tuple[int, ...] = (16, 64)
    context: int = 384
    vocab: int = 128
    learned: bool = False
    paged: bool = False
    scored: bool = True

    @property
    def prefixes(self) -> bool:
        """Whether prefixes can be kept."""
        return self.snapshots > 0 or self.paged


def simulated_manifest(sizes: Sizes) -> Manifest:
    """Ordinary graphs and speculative ones for powers of two of lanes."""
    extent = Extent(
        lanes=sizes.lanes,
        slots=sizes.slots,
        pages=sizes.pages,
        pages_per_request=-(-sizes.context // PAGE_TOKENS),
        width=max(sizes.widths),
        chunk=max(sizes.chunks),
        context=sizes.context,
        vocab=sizes.vocab,
        logprobs=3,
        snapshots=sizes.snapshots,
        scored_chunk=min(sizes.chunks) if sizes.scored else 0,
        paged=sizes.paged,
    )
    graphs = [*_table_graphs(sizes), *_chunk_graphs(sizes), *_round_graphs(sizes)]
    return Manifest(tuple(replace(graph, id=index) for index, graph in enumerate(graphs)), extent)


def _table_graphs(sizes: Sizes) -> list[ExecutionGraph]:
    graphs = [ExecutionGraph(0, "init", 1, 0)]
    if sizes.prefixes:
        graphs += [ExecutionGraph(0, "restore", 1, 0), ExecutionGraph(0, "snapshot", 1, 0)]
    return graphs


def _chunk_graphs(sizes: Sizes) -> list[ExecutionGraph]:
    modes = (False, True) if sizes.learned else (None,)
    kinds: tuple[Kind, ...] = ("prefill", "resume")
    shapes: list[tuple[Kind, int]] = [(kind, chunk) for kind in kinds for chunk in sizes.chunks]
    if sizes.scored:
        shapes.append(("scored_prefill", min(sizes.chunks)))
    return [ExecutionGraph(0, kind, 1, chunk, speculation_enabled=mode) for kind, chunk in shapes for mode in modes]


def _round_graphs(sizes: Sizes) -> list[ExecutionGraph]:
    drafting: DraftSource = "mtp" if sizes.learned else "copy"
    batches = [1 << power for power in range(sizes.lanes.bit_length()) if 1 << power <= sizes.lanes]
    if batches[-1] < sizes.lanes:
        batches.append(sizes.lanes)
    graphs = [ExecutionGraph(0, "decode", batch, 1, speculation_enabled=False) for batch in batches]
    for batch in batches:
        for width in sizes.widths:
            if width == 1 or batch * width <= sizes.rows:
                source = drafting if width > 1 else "none"
                graphs.append(
                    ExecutionGraph(
                        0,
                        "speculative",
                        batch,
                        width,
                        draft_tokens=width - 1,
                        verify_tokens=width,
                        draft_source=source,
                        speculation_enabled=True,
                    )
                )
    return graphs
