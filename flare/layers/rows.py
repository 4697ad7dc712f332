"""Rows: the target inputs of one round, and what a target returns for them.

Shapes: B lanes, W rows per lane, R = B × W, H hidden, F feedback.
"""

from dataclasses import dataclass

from torch import Tensor


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
    """The largest round of a core: what a layer's candidate buffers must hold."""

    lanes: int
    width: int


@dataclass(frozen=True)
class Hidden:
    """What the target computed for R rows: `output` [R, H] feeds the head, `feedback` [R, F] feeds a drafter."""

    output: Tensor
    feedback: Tensor
