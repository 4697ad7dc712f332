"""Rows of one chunk of a prompt, from its frame."""

from torch import Tensor

from flare.contract.frames import Arguments, Scalar
from flare.layers.rows import PageTables, Rows, causal_rows
from flare.ops.requests import Lanes


def chunk_rows(width: int, lengths: Tensor, lanes: Lanes, arguments: Arguments[Tensor], pages: PageTables) -> Rows:
    """The chunk in `arguments.tokens` as rows of the frame's one lane.

    Args:
        width: the graph's capacity T; lengths: [1] tokens consumed by earlier chunks.
    """
    counts = arguments.scalars[Scalar.TOKEN_COUNT : Scalar.TOKEN_COUNT + 1].where(lanes.live, 0)
    return causal_rows(arguments.tokens[None, :width], counts, lengths, lanes.slots, pages)
