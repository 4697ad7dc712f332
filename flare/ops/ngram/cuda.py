"""CUDA n-gram embeddings: hash, lookup, gate and dilated convolution, one Triton launch each."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from math import sqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.formats.cuda import e2m1
from flare.ops.formats.fp8 import Fp8
from flare.ops.formats.nvfp4 import BLOCK as NVFP4_BLOCK
from flare.ops.formats.nvfp4 import Nvfp4
from flare.ops.ngram.tables import NgramHash, NgramTable

_BLOCK = 512
_SMALLEST_LIKENESS = tl.constexpr(1e-6)


def ngram_rows(window: Tensor, hashing: NgramHash) -> Tensor:
    """See the card."""
    window = window.contiguous()
    order, heads = hashing.multipliers.shape[0], hashing.sizes.shape[0]
    lanes, width = window.shape[0], window.shape[1] - order + 1
    rows = window.new_empty(lanes * width, heads)
    _hash[(lanes * width,)](
        window, hashing.multipliers, hashing.sizes, hashing.offsets, rows, width, hashing.eos,
        ORDER=order, HEADS=heads, PADDED_HEADS=triton.next_power_of_2(heads),
    )  # fmt: skip
    return rows


def ngram_lookup(table: NgramTable, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """See the card."""
    rows = rows.contiguous()
    match table.rows:
        case Fp8(values, scale):
            stored, scales, scale_2, packing, kind = values, scale, scale, 1, "fp8"
        case Nvfp4(packed, scale, factor):
            stored, scales, scale_2, packing, kind = packed, scale, factor, 2, "nvfp4"
        case plain:
            stored, scales, scale_2, packing, kind = plain, plain, plain, 1, "dense"
    width = stored.shape[1] * packing
    embedded = torch.empty(rows.shape[0], rows.shape[1] * width, dtype=dtype, device=rows.device)
    _lookup[(rows.numel(),)](
        stored, scales, scale_2, rows, embedded, width,
        KIND=kind, GROUP=NVFP4_BLOCK, PADDED=triton.next_power_of_2(width),
    )  # fmt: skip
    return embedded


def gate_streams(key: Tensor, query: Tensor, value: Tensor) -> Tensor:
    """See the card."""
    key, query, value = key.contiguous(), query.contiguous(), value.contiguous()
    rows, hidden = value.shape
    streams = key.shape[1] // hidden
    gated = torch.empty_like(key)
    _gate[(streams, rows)](
        key,
        query,
        value,
        gated,
        hidden,
        1 / sqrt(hidden),
        STREAMS=streams,
        PADDED=triton.next_power_of_2(hidden),
    )
    return gated


def dilated_conv(gated: Tensor, window: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """See the card."""
    gated, window, weight = gated.contiguous(), window.contiguous(), weight.contiguous()
    lanes, width, channels = gated.shape
    out = torch.empty_like(gated)
    _conv[(triton.cdiv(channels, _BLOCK), lanes * width)](
        gated,
        window,
        weight,
        out,
        width,
        window.shape[1],
        channels,
        dilation,
        TAPS=weight.shape[1],
        BLOCK=_BLOCK,
    )
    return out


@triton.jit
def _hash(
    window_ptr, multipliers_ptr, sizes_ptr, offsets_ptr, rows_ptr, width, eos,
    ORDER: tl.constexpr, HEADS: tl.constexpr, PADDED_HEADS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    newest = window_ptr + (row // width) * (width + ORDER - 1) + row % width + ORDER - 1
    head = tl.arange(0, PADDED_HEADS)
    inside = head < HEADS
    mixed = tl.load(newest) * tl.load(multipliers_ptr)
    by_head = tl.zeros((PADDED_HEADS,), tl.int64)
    cut = tl.load(newest) != tl.load(newest)
    for lag in tl.static_range(1, ORDER):
        token = tl.load(newest - lag)
        cut = cut | (token == eos)
        mixed = mixed ^ (tl.where(cut, eos, token) * tl.load(multipliers_ptr + lag))
        by_head = tl.where(head // (HEADS // (ORDER - 1)) == lag - 1, mixed, by_head)
    sizes = tl.load(sizes_ptr + head, mask=inside, other=1)
    offsets = tl.load(offsets_ptr + head, mask=inside, other=0)
    tl.store(rows_ptr + row * HEADS + head, by_head % sizes + offsets, mask=inside)


@triton.jit
def _lookup(
    stored_ptr, scale_ptr, scale_2_ptr, rows_ptr, out_ptr, width,
    KIND: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    channel = tl.arange(0, PADDED)
    inside = channel < width
    if KIND == "nvfp4":
        packed = tl.load(stored_ptr + row * (width // 2) + channel // 2, mask=inside, other=0).to(tl.int16)
        scale = tl.load(scale_ptr + row * (width // GROUP) + channel // GROUP, mask=inside, other=0.0)
        value = e2m1(tl.where(channel % 2 == 0, packed & 15, packed >> 4)) * scale.to(tl.float32)
        value = value * tl.load(scale_2_ptr).to(tl.float32)
    else:
        value = tl.load(stored_ptr + row * width + channel, mask=inside, other=0.0).to(tl.float32)
        if KIND == "fp8":
            value = value * tl.load(scale_ptr).to(tl.float32)
    tl.store(out_ptr + place * width + channel, value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gate(
    key_ptr, query_ptr, value_ptr, out_ptr, hidden, shrink, STREAMS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row, stream = tl.program_id(1).to(tl.int64), tl.program_id(0)
    channel = tl.arange(0, PADDED)
    inside = channel < hidden
    place = (row * STREAMS + stream) * hidden + channel
    key = tl.load(key_ptr + place, mask=inside, other=0.0).to(tl.float32)
    query = tl.load(query_ptr + place, mask=inside, other=0.0).to(tl.float32)
    likeness = tl.sum(key * query, 0) * shrink
    size = tl.abs(likeness)
    rooted = tl.sqrt(tl.where(size < _SMALLEST_LIKENESS, _SMALLEST_LIKENESS, size))
    signed = tl.where(likeness < 0, -rooted, tl.where(likeness == 0, 0.0, rooted))
    gate = (1 / (1 + tl.exp(-signed))).to(value_ptr.dtype.element_ty).to(tl.float32)
    value = tl.load(value_ptr + row * hidden + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, (gate * value).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _conv(
    gated_ptr, window_ptr, weight_ptr, out_ptr, width, window_rows, channels, dilation,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    first = (row // width) * window_rows + row % width
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(TAPS):
        weight = tl.load(weight_ptr + channel * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
        place = (first + tap * dilation) * channels + channel
        total += weight * tl.load(window_ptr + place, mask=inside, other=0.0).to(tl.float32)
    gated = tl.load(gated_ptr + row * channels + channel, mask=inside, other=0.0).to(tl.float32)
    moved = gated + total / (1 + tl.exp(-total))
    tl.store(out_ptr + row * channels + channel, moved.to(out_ptr.dtype.element_ty), mask=inside)
