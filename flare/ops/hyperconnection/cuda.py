"""CUDA hyperconnections: one Triton launch each, a row's streams read once."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


def scaled_silu(x: Tensor, divisor: float) -> Tensor:
    """See the card."""
    x = x.contiguous()
    y = torch.empty_like(x)
    _scaled_silu[(triton.cdiv(x.numel(), _BLOCK),)](x, y, x.numel(), float(divisor), BLOCK=_BLOCK)
    return y


def mix_streams(normed: Tensor, gate: Tensor, streams: int) -> Tensor:
    """See the card."""
    normed, gate = normed.contiguous(), gate.contiguous()
    rows, hidden = normed.shape[0], normed.shape[1] // streams
    y = normed.new_empty(rows, hidden)
    _mix[(triton.cdiv(hidden, _BLOCK), rows)](normed, gate, y, hidden, STREAMS=streams, BLOCK=_BLOCK)
    return y


def inject_streams(residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
    """See the card."""
    residual, y, injection = residual.contiguous(), y.contiguous(), injection.contiguous()
    rows, hidden = y.shape
    streams = injection.shape[1]
    out = torch.empty_like(residual)
    grid = (triton.cdiv(hidden, _BLOCK), rows)
    _inject[grid](residual, y, injection, out, hidden, STREAMS=streams, BLOCK=_BLOCK)
    return out


@triton.jit
def _scaled_silu(x_ptr, y_ptr, size, divisor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < size, other=0.0).to(tl.float32) / divisor
    tl.store(y_ptr + place, (x / (1 + tl.exp(-x))).to(y_ptr.dtype.element_ty), mask=place < size)


@triton.jit
def _mix(normed_ptr, gate_ptr, y_ptr, hidden, STREAMS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for stream in tl.static_range(STREAMS):
        place = (row * STREAMS + stream) * hidden + channel
        normed = tl.load(normed_ptr + place, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
        total += normed / (1 + tl.exp(-gate))
    tl.store(y_ptr + row * hidden + channel, (total / STREAMS).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _inject(
    residual_ptr,
    y_ptr,
    injection_ptr,
    out_ptr,
    hidden,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < hidden
    y = tl.load(y_ptr + row * hidden + channel, mask=inside, other=0.0).to(tl.float32)
    for stream in tl.static_range(STREAMS):
        logit = tl.load(injection_ptr + row * STREAMS + stream).to(tl.float32)
        place = (row * STREAMS + stream) * hidden + channel
        residual = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
        out = residual + 2 / (1 + tl.exp(-logit / STREAMS)) * y
        tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside)
