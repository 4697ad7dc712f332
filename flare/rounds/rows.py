"""Rows of a round from its frame: the page tables of its lanes, and one chunk of a prompt."""

from torch import Tensor

from flare.contract.frames import Arguments, Scalar
from flare.contract.manifest import Extent
from flare.layers.rows import PageTables, Rows, causal_rows
from flare.rounds.requests import Lanes


def page_tables(arguments: Arguments[Tensor], lanes: Lanes, extent: Extent) -> PageTables:
    """The tables of the first lanes of a frame."""
    return PageTables(arguments.page_tables[: len(lanes.slots)], extent.null_page, extent.context)


def chunk_rows(width: int, lengths: Tensor, lanes: Lanes, arguments: Arguments[Tensor], extent: Extent) -> Rows:
    """The chunk in `arguments.tokens` as rows of the frame's one lane.

    Args:
        width: the graph's capacity T; lengths: [1] tokens consumed by earlier chunks.
    """
    counts = arguments.scalars[Scalar.TOKEN_COUNT : Scalar.TOKEN_COUNT + 1].where(lanes.live, 0)
    pages = page_tables(arguments, lanes, extent)
    return causal_rows(arguments.tokens[None, :width], counts, lengths, lanes.slots, pages)
