"""CUDA short convolution: one Triton launch for all lanes, rows and channels, and one to shift the histories."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.short_conv.lanes import Boundary, LaneRows

_BLOCK = 512


def short_conv(x: Tensor, weight: Tensor, history: Tensor, lanes: LaneRows) -> Tensor:
    """See the card."""
    x, weight = x.contiguous(), weight.contiguous()
    lane_count, width, channels = x.shape
    y = torch.empty_like(x)
    _convolve[(triton.cdiv(channels, _BLOCK), width, lane_count)](
        x, weight, history, y, lanes.slots, lanes.lengths, lanes.counts, width, channels,
        TAPS=weight.shape[1], BLOCK=_BLOCK,
    )  # fmt: skip
    return y


def shift_history(x: Tensor, history: Tensor, lanes: LaneRows, boundary: Boundary | None = None) -> None:
    """See the card; rows of x may be strided, as a round's corner of a longer buffer is."""
    lane_count, _, channels = x.shape
    assert x.stride(2) == 1, "channels lie side by side"
    assert history.is_contiguous(), "a strided history would be written beside itself"
    second = lanes if boundary is None else boundary
    _shift[(triton.cdiv(channels, _BLOCK), lane_count)](
        x, history, lanes.slots, lanes.lengths, lanes.counts, second.slots, second.counts,
        x.stride(0), x.stride(1), channels,
        KEPT=history.shape[1], HAS_BOUNDARY=boundary is not None, BLOCK=_BLOCK,
    )  # fmt: skip


@triton.jit
def _convolve(
    x_ptr, weight_ptr, history_ptr, y_ptr, slots_ptr, lengths_ptr, counts_ptr, width, channels,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (channel < channels) & (row < tl.load(counts_ptr + lane))
    past = history_ptr + tl.load(slots_ptr + lane) * (TAPS - 1) * channels + channel
    known = tl.load(lengths_ptr + lane) > 0
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(TAPS):
        # Input `row + tap − (TAPS − 1)` of this round; below zero it is one of the history.
        source = row + tap - (TAPS - 1)
        new = tl.load(x_ptr + (lane * width + source) * channels + channel, mask=inside & (source >= 0), other=0.0)
        old = tl.load(past + (source + TAPS - 1) * channels, mask=inside & (source < 0) & known, other=0.0)
        taken = tl.where(source >= 0, new.to(tl.float32), old.to(tl.float32))
        total += taken * tl.load(weight_ptr + channel * TAPS + tap, mask=channel < channels, other=0.0).to(tl.float32)
    y = tl.where(inside, total / (1 + tl.exp(-total)), 0.0).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + (lane * width + row) * channels + channel, y, mask=channel < channels)


@triton.jit
def _shift(
    x_ptr, history_ptr, slots_ptr, lengths_ptr, counts_ptr, second_slots_ptr, second_counts_ptr,
    x_lane_stride, x_row_stride, channels,
    KEPT: tl.constexpr, HAS_BOUNDARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    slot, count = tl.load(slots_ptr + lane), tl.load(counts_ptr + lane)
    known = tl.load(lengths_ptr + lane) > 0
    rows, own = x_ptr + lane * x_lane_stride + channel, history_ptr + slot * KEPT * channels + channel
    if HAS_BOUNDARY:
        # Before the lane's own history moves; a boundary in the lane's own slot is overwritten by the final state.
        second, stop = tl.load(second_slots_ptr + lane), tl.load(second_counts_ptr + lane)
        reached = inside & (stop >= 1) & (stop <= count) & (second != slot)
        _write_window(rows, own, history_ptr + second * KEPT * channels + channel, stop, known, reached,
                      x_row_stride, channels, KEPT)  # fmt: skip
    _write_window(rows, own, own, count, known, inside & (count > 0), x_row_stride, channels, KEPT)


@triton.jit
def _write_window(rows, own, target, count, known, chosen, x_row_stride, channels, KEPT: tl.constexpr):
    """The KEPT inputs before row `count` ≥ 1. In place: entry i comes from a later one, which no earlier step wrote."""
    for entry in tl.static_range(KEPT):
        source = count + entry - KEPT
        new = tl.load(rows + source * x_row_stride, mask=chosen & (source >= 0), other=0.0)
        old = tl.load(own + (source + KEPT) * channels, mask=chosen & (source < 0) & known, other=0.0)
        tl.store(target + entry * channels, tl.where(source >= 0, new, old), mask=chosen)
