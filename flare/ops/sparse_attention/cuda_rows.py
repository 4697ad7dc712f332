"""Triton kernels that touch rows one by one: norm with rotary turn, absorption of index keys, reuse, sigmoid gate."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sparse_attention.contract import GROUP_TOKENS, IndexStream, Interval

_HEADS = 4
_BLOCK = 1024


def norm_rotary(x: Tensor, weight: Tensor, cosines: Tensor, signed_sines: Tensor, eps: float) -> Tensor:
    """See the card; x may be strided, as the query half of a fused projection is."""
    rows, heads, width = x.shape
    assert x.stride(2) == 1, "channels of a head lie side by side"
    y = x.new_empty(rows, heads, width)
    cosines, signed_sines = _flat(cosines), _flat(signed_sines)
    _norm_rotary[(triton.cdiv(heads, _HEADS), rows)](
        x, weight, cosines, signed_sines, y, x.stride(0), x.stride(1), cosines.stride(0),
        heads, width, cosines.shape[1], eps,
        HEADS=_HEADS, PADDED=triton.next_power_of_2(width), num_warps=2,
    )  # fmt: skip
    return y


def absorb_keys(raw: Tensor, stream: IndexStream, interval: Interval, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    """See the card; raw may be strided."""
    lanes, width, index_dim = raw.shape
    assert raw.stride(2) == 1, "channels of a key lie side by side"
    assert all(storage.is_contiguous() for storage in (stream.pages, stream.ring, stream.tags))
    intact = torch.empty(lanes, dtype=torch.bool, device=raw.device)
    cosines, signed_sines = _flat(cosines), _flat(signed_sines)
    closable = triton.cdiv(width, GROUP_TOKENS)
    _absorb[(closable, lanes)](
        raw, stream.ring, stream.tags, stream.pages, stream.norm, cosines, signed_sines, intact,
        interval.slots, interval.lengths, interval.counts, interval.page_tables,
        raw.stride(0), raw.stride(1), interval.page_tables.stride(0), cosines.stride(0),
        index_dim, stream.pages.shape[1] // GROUP_TOKENS, cosines.shape[1], stream.eps,
        CLOSABLE=closable, RING=stream.ring.shape[1], GROUP=GROUP_TOKENS,
        PADDED=triton.next_power_of_2(index_dim), num_warps=2,
    )  # fmt: skip
    return intact


def reuse_selection(
    recorded: Tensor, recorded_positions: Tensor, source: Tensor, positions: Tensor, tail: int
) -> Tensor:
    """See the card."""
    recorded, positions = recorded.contiguous(), positions.contiguous()
    lanes, selected = source.shape[0], recorded.shape[1]
    selection = torch.empty(lanes, selected + tail, dtype=torch.int32, device=source.device)
    _reuse[(triton.cdiv(selected + tail, _BLOCK), lanes)](
        recorded,
        recorded_positions,
        source,
        positions,
        selection,
        recorded.shape[0],
        selected,
        tail,
        BLOCK=_BLOCK,
    )
    return selection


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """See the card; a gate of three axes may be strided, as the gate half of a fused projection is."""
    x, width = x.contiguous(), x.shape[-1]
    if gate.dim() != 3 or gate.stride(2) != 1:
        gate = gate.contiguous().view(-1, 1, width)
    y = torch.empty_like(x)
    _gate[(x.numel() // width, triton.cdiv(width, _BLOCK))](
        x, gate, y, gate.stride(0), gate.stride(1), gate.shape[1], width,
        BLOCK=min(_BLOCK, triton.next_power_of_2(width)), num_warps=2,
    )  # fmt: skip
    return y


def _flat(rows: Tensor) -> Tensor:
    """Rotary rows [R, 1, width] as [R, width], rows at any distance."""
    flat = rows.reshape(rows.shape[0], -1)
    assert flat.stride(1) == 1, "angles of a row lie side by side"
    return flat


@triton.jit
def _rounded(x, kind: tl.constexpr):
    """float32 values through the model's dtype."""
    return x.to(kind).to(tl.float32)


@triton.jit
def _partner(channel, rotary):
    """The channel that turns with this one; past the rotary width, itself."""
    half = rotary // 2
    return tl.where(channel < half, channel + half, tl.where(channel < rotary, channel - half, channel))


@triton.jit
def _turned(normed, partner, cosine, sine, turning, kind: tl.constexpr, angle_kind: tl.constexpr):
    """normed · cosine + partner · sine where it turns; the products are rounded where the angles are that narrow."""
    turned = _rounded(normed * cosine, angle_kind) + _rounded(partner * sine, angle_kind)
    return tl.where(turning, _rounded(turned, kind), normed)


@triton.jit
def _norm_rotary(
    x_ptr, weight_ptr, cosines_ptr, sines_ptr, y_ptr, row_stride, head_stride, angle_stride, heads, width, rotary, eps,
    HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    head, channel = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[:, None], tl.arange(0, PADDED)
    in_row = channel < width
    inside = (head < heads) & in_row[None, :]
    kind = y_ptr.dtype.element_ty
    other = _partner(channel, rotary)
    start = x_ptr + row * row_stride + head * head_stride
    x = tl.load(start + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    x_other = tl.load(start + other[None, :], mask=inside, other=0.0).to(tl.float32)
    weight = 1 + tl.load(weight_ptr + channel, mask=in_row, other=0.0).to(tl.float32)
    weight_other = 1 + tl.load(weight_ptr + other, mask=in_row, other=0.0).to(tl.float32)
    size = tl.sqrt(tl.sum(x * x, 1) / width + eps)[:, None]
    turning = channel < rotary
    cosine = tl.load(cosines_ptr + row * angle_stride + channel, mask=turning, other=1.0).to(tl.float32)
    sine = tl.load(sines_ptr + row * angle_stride + channel, mask=turning, other=0.0).to(tl.float32)
    normed = _rounded(x / size * weight[None, :], kind)
    partner = _rounded(x_other / size * weight_other[None, :], kind)
    y = _turned(normed, partner, cosine[None, :], sine[None, :], turning[None, :], kind, cosines_ptr.dtype.element_ty)
    tl.store(y_ptr + (row * heads + head) * width + channel[None, :], y.to(kind), mask=inside)


@triton.jit
def _absorb(
    raw_ptr, ring_ptr, tags_ptr, pages_ptr, norm_ptr, cosines_ptr, sines_ptr, intact_ptr,
    slots_ptr, lengths_ptr, counts_ptr, tables_ptr,
    lane_stride, row_stride, table_stride, angle_stride, width, per_page, rotary, eps,
    CLOSABLE: tl.constexpr, RING: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One group of a lane; the first one alone may need the ring, so the program of the first also rewrites it."""
    lane, turn = tl.program_id(1).to(tl.int64), tl.program_id(0)
    slot, start = tl.load(slots_ptr + lane), tl.load(lengths_ptr + lane)
    count = tl.load(counts_ptr + lane)
    channel = tl.arange(0, PADDED)
    inside = channel < width
    kind = ring_ptr.dtype.element_ty
    raw, ring, tags = raw_ptr + lane * lane_stride, ring_ptr + slot * RING * width, tags_ptr + slot * RING
    other = _partner(channel, rotary)
    group = start // GROUP + turn
    closes = group < (start + count) // GROUP
    mean, mean_other = tl.zeros((PADDED,), tl.float32), tl.zeros((PADDED,), tl.float32)
    missing = 0
    for member in tl.static_range(GROUP):
        position = group * GROUP + member
        entry = position % RING
        is_new, is_old = closes & (position >= start), closes & (position < start)
        new, old = raw + (position - start) * row_stride, ring + entry * width
        mean += tl.load(new + channel, mask=inside & is_new, other=0.0).to(tl.float32)
        mean += tl.load(old + channel, mask=inside & is_old, other=0.0).to(tl.float32)
        mean_other += tl.load(new + other, mask=inside & is_new, other=0.0).to(tl.float32)
        mean_other += tl.load(old + other, mask=inside & is_old, other=0.0).to(tl.float32)
        missing += (is_old & (tl.load(tags + entry) != position)).to(tl.int32)
    mean, mean_other = _rounded(mean / GROUP, kind), _rounded(mean_other / GROUP, kind)
    size = tl.sqrt(tl.sum(mean * mean, 0) / width + eps)
    weight = 1 + tl.load(norm_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    weight_other = 1 + tl.load(norm_ptr + other, mask=inside, other=0.0).to(tl.float32)
    turning = channel < rotary
    rotary_row = (lane * CLOSABLE + turn) * angle_stride
    cosine = tl.load(cosines_ptr + rotary_row + channel, mask=turning & closes, other=1.0).to(tl.float32)
    sine = tl.load(sines_ptr + rotary_row + channel, mask=turning & closes, other=0.0).to(tl.float32)
    normed, partner = _rounded(mean / size * weight, kind), _rounded(mean_other / size * weight_other, kind)
    key = _turned(normed, partner, cosine, sine, turning, kind, cosines_ptr.dtype.element_ty)
    page = tl.load(tables_ptr + lane * table_stride + group // per_page, mask=closes, other=0).to(tl.int64)
    target = pages_ptr + (page * per_page + group % per_page) * width + channel
    tl.store(target, key.to(kind), mask=inside & closes)
    if turn == 0:
        tl.store(intact_ptr + lane, missing == 0)
        # Every thread has read what it needs of the ring and its tags before any writes them.
        tl.debug_barrier()
        for back in tl.static_range(RING):
            kept = back < count
            position = start + count - 1 - back
            entry = tl.where(kept, position % RING, 0)
            newest = tl.load(raw + (count - 1 - back) * row_stride + channel, mask=inside & kept, other=0.0)
            tl.store(ring + entry * width + channel, newest, mask=inside & kept)
            tl.store(tags + entry, position, mask=kept)


@triton.jit
def _reuse(
    recorded_ptr,
    anchors_ptr,
    source_ptr,
    positions_ptr,
    selection_ptr,
    records,
    selected,
    tail,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    source, position = tl.load(source_ptr + lane), tl.load(positions_ptr + lane)
    exists = (source >= 0) & (source < records)
    anchor = tl.load(anchors_ptr + source, mask=exists, other=0)
    valid = exists & (position > anchor) & (position <= anchor + tail)
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(recorded_ptr + source * selected + entry, mask=valid & (entry < selected), other=-1)
    later = anchor + 1 + entry - selected
    new = tl.where(valid & (later <= position), later, -1).to(tl.int32)
    width = selected + tail
    tl.store(selection_ptr + lane * width + entry, tl.where(entry < selected, old, new), mask=entry < width)


@triton.jit
def _gate(x_ptr, gate_ptr, y_ptr, row_stride, head_stride, heads, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < width
    x = tl.load(x_ptr + row * width + channel, mask=inside, other=0.0).to(tl.float32)
    gate_place = row // heads * row_stride + row % heads * head_stride + channel
    gate = tl.load(gate_ptr + gate_place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + channel, (x / (1 + tl.exp(-gate))).to(y_ptr.dtype.element_ty), mask=inside)
