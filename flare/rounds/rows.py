"""Rows of a round: candidates after each lane's tail, or one chunk of a prompt.

Shapes: B lanes, W rows per lane, T tokens of a chunk.
"""

import torch
from torch import Tensor

from flare.contract.frames import Arguments, Scalar
from flare.contract.manifest import PAGE_TOKENS, Extent
from flare.layers.rows import Rows
from flare.rounds.requests import Lanes


def causal_rows(
    tokens: Tensor, counts: Tensor, lengths: Tensor, lanes: Lanes, arguments: Arguments[Tensor], extent: Extent
) -> Rows:
    """Rows at positions N … N + W − 1, the first `counts` of each lane active.

    Args:
        tokens: [B, W] inputs; counts: [B] active rows, 0 for dead lanes; lengths: [B] consumed tokens N.
    """
    count, width = tokens.shape
    index = torch.arange(width, device=tokens.device)
    active = index < counts[:, None]
    positions = (lengths[:, None] + index).clamp(max=extent.context - 1)
    tables = arguments.page_tables[:count]
    pages = tables.gather(1, positions // PAGE_TOKENS).long().where(active, extent.null_page)
    return Rows(
        tokens=tokens.where(active, 0),
        positions=positions,
        active=active,
        counts=counts,
        lengths=lengths,
        slots=lanes.slots,
        page_tables=tables,
        write_index=(pages * PAGE_TOKENS + positions % PAGE_TOKENS).view(-1),
    )


def chunk_rows(width: int, lengths: Tensor, lanes: Lanes, arguments: Arguments[Tensor], extent: Extent) -> Rows:
    """The chunk in `arguments.tokens` as rows of the frame's one lane.

    Args:
        width: the graph's capacity T; lengths: [1] tokens consumed by earlier chunks.
    """
    counts = arguments.scalars[Scalar.TOKEN_COUNT : Scalar.TOKEN_COUNT + 1].where(lanes.live, 0)
    return causal_rows(arguments.tokens[None, :width], counts, lengths, lanes, arguments, extent)
