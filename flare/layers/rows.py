"""Rows: the target inputs of one round, and what a target returns for them.

Shapes: B lanes, W rows per lane, R = B × W, H hidden, F feedback.
"""

from dataclasses import dataclass

from torch import Tensor

from flare.ops.requests import PageTables, Rows

__all__ = ["Hidden", "PageTables", "RoundShape", "Rows", "causal_rows"]


@dataclass(frozen=True)
class RoundShape:
    """The largest round of a core: what a layer's candidate buffers must hold; `chunk` is the largest prompt chunk."""

    lanes: int
    width: int
    chunk: int = 512


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
    return pages.place(tokens, counts, lengths, slots, pages)
