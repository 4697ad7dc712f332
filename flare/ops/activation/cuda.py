"""CUDA `silu_mul`: one pass over gates and what they scale."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


def silu_mul(gate_up: Tensor) -> Tensor:
    """See the card."""
    gate_up = gate_up.contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty((rows, width))
    gate_channels[(rows, triton.cdiv(width, _BLOCK))](gate_up, y, width, BLOCK=_BLOCK, num_warps=4)
    return y


@triton.jit
def gate_channels(gate_up, y, width, BLOCK: tl.constexpr):
    """Program (r, b) computes block b of row r, in float32, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + column, (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty), mask=inside)
