"""Rows: the target inputs of one round, and what a target returns for them.

Shapes: B lanes, W rows per lane, R = B × W, H hidden, F feedback.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.contract.manifest import PAGE_TOKENS


@dataclass(frozen=True)
class Rows:
    """B × W candidate rows, each seen causally after its lane's committed state.

    Attributes:
        tokens: [B, W] int64, valid ids everywhere (0 where inactive).
        positions: [B, W] int64 absolute positions, within the context everywhere.
        active: [B, W] bool; a lane's active rows come first.
        counts: [B] int64 active rows per lane, 0 for dead lanes.
        lengths: [B] int64 tokens N committed before this round.
        slots: [B] int64 request slots; dead and padded lanes name the null slot.
        page_tables: [B, pages_per_request] int32.
        write_index: [R] int64 flat token index page × 64 + offset; inactive rows point into the null page.
    """

    tokens: Tensor
    positions: Tensor
    active: Tensor
    counts: Tensor
    lengths: Tensor
    slots: Tensor
    page_tables: Tensor
    write_index: Tensor


@dataclass(frozen=True)
class RoundShape:
    """The largest round of a core: what a layer's candidate buffers must hold; `chunk` is the largest prompt chunk."""

    lanes: int
    width: int
    chunk: int = 512


@dataclass(frozen=True)
class PageTables:
    """Which pages hold each lane's tokens.

    Attributes:
        tables: [B, pages_per_request] int32, unused entries name the null page.
        null_page: where inactive rows write; context: tokens a request may hold.
    """

    tables: Tensor
    null_page: int
    context: int


@dataclass(frozen=True)
class Hidden:
    """What the target computed for R rows: `output` [R, H] feeds the head, `feedback` [R, F] feeds a drafter."""

    output: Tensor
    feedback: Tensor


def causal_rows(tokens: Tensor, counts: Tensor, lengths: Tensor, slots: Tensor, pages: PageTables) -> Rows:
    """Rows at positions N … N + W − 1, the first `counts` of each lane active.

    Args:
        tokens: [B, W] inputs; counts: [B] active rows, 0 for dead lanes; lengths: [B] committed tokens N.
        slots: [B] request slots, the null slot for dead lanes.
    """
    index = torch.arange(tokens.shape[1], device=tokens.device)
    active = index < counts[:, None]
    positions = (lengths[:, None] + index).clamp(max=pages.context - 1)
    page = pages.tables.gather(1, positions // PAGE_TOKENS).long().where(active, pages.null_page)
    return Rows(
        tokens=tokens.where(active, 0),
        positions=positions,
        active=active,
        counts=counts,
        lengths=lengths,
        slots=slots,
        page_tables=pages.tables,
        write_index=(page * PAGE_TOKENS + positions % PAGE_TOKENS).view(-1),
    )
