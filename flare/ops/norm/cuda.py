"""CUDA norms: one program per row, or per group of a row; float32 inside, one rounding at the end."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARP_ELEMENTS = 512
_WARPS = 8


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    return _norm(x, weight, eps, 1, zero_centred=False)


def zero_centred_norm(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    """See the card."""
    return _norm(x, weight, eps, groups, zero_centred=True)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    rows, width = residual.shape
    assert residual.stride(1) == x.stride(1) == 1, "rows lie in one piece"
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(width)
    add_norm_rows[(rows,)](
        residual, x, weight, y, residual.stride(0), x.stride(0), eps, WIDTH=width, BLOCK=block, num_warps=_warps(block)
    )
    return y


def _norm(x: Tensor, weight: Tensor, eps: float, groups: int, zero_centred: bool) -> Tensor:
    assert x.stride(-1) == 1, "rows lie in one piece"
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    width = x.shape[1] // groups
    block = triton.next_power_of_2(width)
    norm_rows[(x.shape[0], groups)](
        x, weight, y, x.stride(0), eps, WIDTH=width, ZERO_CENTRED=zero_centred, BLOCK=block, num_warps=_warps(block)
    )
    return y


def _warps(block: int) -> int:
    return min(max(block // _WARP_ELEMENTS, 1), _WARPS)


@triton.jit
def norm_rows(x, weight, y, x_row, eps, WIDTH: tl.constexpr, ZERO_CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """Program (r, g) norms group g of row r."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(x + row * x_row + group * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + group * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if ZERO_CENTRED:
        factor += 1.0
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps) * factor
    tl.store(y + (row * tl.num_programs(1) + group) * WIDTH + column, normed.to(y.dtype.element_ty), mask=inside)


@triton.jit
def add_norm_rows(residual, x, weight, y, residual_row, x_row, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Program r adds row r to the residual and norms the sum as it is stored, rounded."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = residual + row * residual_row + column
    total = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    rounded = total.to(residual.dtype.element_ty)
    tl.store(place, rounded, mask=inside)
    value = rounded.to(tl.float32)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps) * factor
    tl.store(y + row * WIDTH + column, normed.to(y.dtype.element_ty), mask=inside)
