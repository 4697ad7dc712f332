"""Rows of a round: tokens, positions and places of B × W target inputs, and the torch operator that makes them.

Shapes: B lanes, W rows per lane, R = B × W.
"""

from dataclasses import dataclass
from typing import Protocol

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


class CausalRows(Protocol):
    """tokens [B, W], counts, lengths, slots [B] → rows; see the card."""

    def __call__(self, tokens: Tensor, counts: Tensor, lengths: Tensor, slots: Tensor, pages: "PageTables") -> Rows: ...


def causal_rows(tokens: Tensor, counts: Tensor, lengths: Tensor, slots: Tensor, pages: "PageTables") -> Rows:
    """See the card."""
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


@dataclass(frozen=True)
class PageTables:
    """Which pages hold each lane's tokens.

    Attributes:
        tables: [B, pages_per_request] int32, unused entries name the null page.
        null_page: where inactive rows write; context: tokens a request may hold.
        place: the operator that puts rows into these pages.
    """

    tables: Tensor
    null_page: int
    context: int
    place: CausalRows = causal_rows
