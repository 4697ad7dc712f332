"""Card of `project_heads`, `norm_gate` and `add_linear`: linears of a pre-norm layer with what surrounds them.

axes     R rows, H hidden, Hq query heads, Hk key heads, D head width, F inner width, K inputs
inputs   x [R, H] the residual stream; norm: an RMSNorm weight [H] with its eps
         `project_heads`: packed [(Hq + 2 Hk) · D, H], query heads first, then keys, then values; the two row tensors of
         `rotary_rows`; places: the pages [pages + 1, 64, Hk, D] keys and values go to, and the flat token index [R]
         int64 of each row in them (the null page for inactive rows)
         `norm_gate`: packed [2F, H], gates first, then what they scale
         `add_linear`: residual [R, N], x [R, K], packed [N, K]
outputs  `project_heads`: q [R, Hq, D] of the normed rows, turned by their positions; turned keys and values are in the
         pages afterwards
         `norm_gate`: [R, F] = silu(gate) · up of the normed rows
         `add_linear`: residual += x · Wᵀ in place

The same as `rms_norm`, `linear`, `apply_rotary`, `write_pages`, `silu_mul` and a sum one after the other, except that
an operator may keep what lies between them in float32 instead of rounding it, and may round a row times the norm's
weight and scale its products instead of rounding the normed row. Rows do not touch each other, and a row's bits do not
depend on R where those of `linear` do not.

On CUDA the row tensors and the index of `project_heads` are read while the kernel launched just before may still run:
it must not be the one that writes them (`flare/ops/cuda_early.py`).
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """An RMSNorm: weight [H] and the epsilon inside the root."""

    weight: Tensor
    eps: float


@dataclass(frozen=True)
class Places:
    """Where the rows' keys and values go.

    Attributes:
        keys, values: [pages + 1, 64, Hk, D], as `write_pages` takes them.
        index: [R] int64 = page · 64 + offset.
    """

    keys: Tensor
    values: Tensor
    index: Tensor
