"""Triton kernels of the experts: tiles of (row, choice) pairs that share an expert, weights widened in registers.

A pair is `row · k + choice`. A tile reads its expert's matrix block once and multiplies all its pairs by it; pairs are
sorted by expert and cut into tiles beforehand. A product of an E2M1 value and an E4M3 scale has six bits at most, so
bfloat16 holds it exactly; the matrix's own scale multiplies the finished sum. What the second matrix reads is float32
and goes in two bfloat16 products, upper and lower halves. No atomics: a pair's result depends on its row alone.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.formats.cuda import SHRINK, scaled_pairs


@triton.jit
def sorted_tile(order_ptr, tile_experts_ptr, tile_starts_ptr, tile_stops_ptr, experts, ROWS: tl.constexpr):
    """A tile's expert, its pairs [ROWS], which are real, and whether it has work: past the last it names `experts`."""
    tile = tl.program_id(1)
    expert = tl.load(tile_experts_ptr + tile)
    entry = tl.load(tile_starts_ptr + tile) + tl.arange(0, ROWS)
    chosen = (entry < tl.load(tile_stops_ptr + tile)) & (expert < experts)
    pairs = tl.load(order_ptr + entry, mask=chosen, other=0).to(tl.int32)
    return expert, pairs, chosen, expert < experts


@triton.jit
def widened_block(packed_ptr, scale_ptr, column, start, columns: tl.constexpr, depth: tl.constexpr,
                  BLOCK: tl.constexpr, kind: tl.constexpr):  # fmt: skip
    """Even and odd elements [len(column), BLOCK / 2] of an NVFP4 matrix from element `start` of its rows on."""
    group, byte = tl.arange(0, BLOCK // 16), tl.arange(0, 8)
    at = start // 16 + group
    inside = (column < columns)[:, None] & (at < depth // 16)[None, :]
    scale_place = column[:, None].to(tl.int64) * (depth // 16) + at[None, :]
    scale = tl.load(scale_ptr + scale_place, mask=inside, other=0.0).to(tl.float32)
    packed = tl.load(packed_ptr + scale_place[:, :, None] * 8 + byte[None, None, :], mask=inside[:, :, None], other=0)
    even, odd = scaled_pairs(packed, scale[:, :, None], kind)
    return tl.reshape(even, (column.shape[0], BLOCK // 2)), tl.reshape(odd, (column.shape[0], BLOCK // 2))


@triton.jit
def added_product(total, x, rest, weight, HALVES: tl.constexpr):
    """total + (x + rest) · weightᵀ; `rest` counts where there are HALVES."""
    total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    if HALVES:
        total = tl.dot(rest, tl.trans(weight), total, input_precision="ieee")
    return total


@triton.jit
def added_block(total, x, rest, weight_ptr, scale_ptr, column, start, columns: tl.constexpr, depth: tl.constexpr,
                PACKED: tl.constexpr, BLOCK: tl.constexpr, HALVES: tl.constexpr):  # fmt: skip
    """total [pairs, columns] + (x + rest) [pairs, BLOCK] · the matrix's elements from `start` on."""
    if PACKED:
        even, odd = widened_block(weight_ptr, scale_ptr, column, start, columns, depth, BLOCK, x.dtype)
        x_even, x_odd = tl.split(tl.reshape(x, (x.shape[0], BLOCK // 2, 2)))
        rest_even, rest_odd = tl.split(tl.reshape(rest, (x.shape[0], BLOCK // 2, 2)))
        total = added_product(total, x_even, rest_even, even, HALVES)
        total = added_product(total, x_odd, rest_odd, odd, HALVES)
    else:
        element = start + tl.arange(0, BLOCK)
        inside = (column < columns)[:, None] & (element < depth)[None, :]
        place = column[:, None].to(tl.int64) * depth + element[None, :]
        weight = tl.load(weight_ptr + place, mask=inside, other=0.0).to(x.dtype)
        total = added_product(total, x, rest, weight, HALVES)
    return total


@triton.jit
def gate_up(
    x_ptr, gate_ptr, gate_scale_ptr, gate_factor_ptr, up_ptr, up_scale_ptr, up_factor_ptr, gated_ptr,
    order_ptr, tile_experts_ptr, tile_starts_ptr, tile_stops_ptr, pair_count, experts,
    HIDDEN: tl.constexpr, FFN: tl.constexpr,
    PACKED: tl.constexpr, CHOICES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """gated [halves, pairs, F] = silu(gate_e x) · (up_e x)."""
    expert, pairs, chosen, works = sorted_tile(
        order_ptr, tile_experts_ptr, tile_starts_ptr, tile_stops_ptr, experts, ROWS
    )
    if works:
        kind = x_ptr.dtype.element_ty
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        x_row = x_ptr + (pairs // CHOICES).to(tl.int64)[:, None] * HIDDEN
        stored, scales = expert * FFN * HIDDEN, expert * FFN * (HIDDEN // 16)
        if PACKED:
            stored = stored // 2
        gate, up = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, HIDDEN, BLOCK):
            element = start + tl.arange(0, BLOCK)
            x_mask = chosen[:, None] & (element < HIDDEN)[None, :]
            x = tl.load(x_row + element[None, :], mask=x_mask, other=0.0)
            gate = added_block(gate, x, x, gate_ptr + stored, gate_scale_ptr + scales, column, start, FFN, HIDDEN,
                               PACKED, BLOCK, False)  # fmt: skip
            up = added_block(up, x, x, up_ptr + stored, up_scale_ptr + scales, column, start, FFN, HIDDEN,
                             PACKED, BLOCK, False)  # fmt: skip
        if PACKED:
            gate *= tl.load(gate_factor_ptr + expert) / SHRINK
            up *= tl.load(up_factor_ptr + expert) / SHRINK
        gated = gate / (1 + tl.exp(-gate)) * up
        place = pairs.to(tl.int64)[:, None] * FFN + column[None, :]
        mask = chosen[:, None] & (column < FFN)[None, :]
        upper = gated.to(kind)
        tl.store(gated_ptr + place, upper, mask=mask)
        if kind != tl.float32:
            rest = (gated - upper.to(tl.float32)).to(kind)
            tl.store(gated_ptr + pair_count * FFN + place, rest, mask=mask)


@triton.jit
def down(
    gated_ptr, down_ptr, scale_ptr, factor_ptr, out_ptr,
    order_ptr, tile_experts_ptr, tile_starts_ptr, tile_stops_ptr, pair_count, experts,
    HIDDEN: tl.constexpr, FFN: tl.constexpr,
    PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [pairs, H] float32 = down_e gated."""
    expert, pairs, chosen, works = sorted_tile(
        order_ptr, tile_experts_ptr, tile_starts_ptr, tile_stops_ptr, experts, ROWS
    )
    if works:
        halves: tl.constexpr = gated_ptr.dtype.element_ty != tl.float32
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        gated_row = gated_ptr + pairs.to(tl.int64)[:, None] * FFN
        rest_row = gated_row + pair_count * FFN
        stored, scales = expert * HIDDEN * FFN, expert * HIDDEN * (FFN // 16)
        if PACKED:
            stored = stored // 2
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, FFN, BLOCK):
            element = start + tl.arange(0, BLOCK)
            gated_mask = chosen[:, None] & (element < FFN)[None, :]
            gated = tl.load(gated_row + element[None, :], mask=gated_mask, other=0.0)
            rest = gated
            if halves:
                rest = tl.load(rest_row + element[None, :], mask=gated_mask, other=0.0)
            total = added_block(total, gated, rest, down_ptr + stored, scale_ptr + scales, column, start, HIDDEN, FFN,
                                PACKED, BLOCK, halves)  # fmt: skip
        if PACKED:
            total *= tl.load(factor_ptr + expert) / SHRINK
        place = pairs.to(tl.int64)[:, None] * HIDDEN + column[None, :]
        tl.store(out_ptr + place, total, mask=chosen[:, None] & (column < HIDDEN)[None, :])


@triton.jit
def combine(out_ptr, ids_ptr, weights_ptr, y_ptr, hidden,
            CHOICES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """y [R, H] = Σ weight · out over a row's choices, in order of rising expert."""
    row = tl.program_id(1).to(tl.int64)
    choice, channel = tl.arange(0, PADDED), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real, inside = choice < CHOICES, channel < hidden
    none_left: tl.constexpr = 0x7FFFFFFF
    ids = tl.load(ids_ptr + row * CHOICES + choice, mask=real, other=none_left)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(CHOICES):
        place = row * CHOICES + tl.argmin(ids, 0)
        out = tl.load(out_ptr + place * hidden + channel, mask=inside, other=0.0)
        total += tl.load(weights_ptr + place) * out
        ids = tl.where(choice == tl.argmin(ids, 0), none_left, ids)
    tl.store(y_ptr + row * hidden + channel, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def choose(
    logits_ptr,
    ids_ptr,
    weights_ptr,
    experts,
    row_stride,
    CHOICES: tl.constexpr,
    PADDED: tl.constexpr,
):
    """A row's softmax and its largest entries, one after the other, the lower id first among equals."""
    row, expert = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    real = expert < experts
    logits = tl.load(logits_ptr + row * row_stride + expert, mask=real, other=float("-inf")).to(tl.float32)
    law = tl.exp(logits - tl.max(logits, 0))
    law = law / tl.sum(law, 0)
    # A poisoned row still names existing experts, each once; its weights stay NaN.
    rank = tl.where(real, tl.where(law >= 0, law, 0.0), -1.0)
    chosen_sum = 0.0
    for choice in tl.static_range(CHOICES):
        best = tl.argmax(rank, 0)
        weight = tl.sum(tl.where(expert == best, law, 0.0), 0)
        chosen_sum += weight
        tl.store(ids_ptr + row * CHOICES + choice, best.to(tl.int64))
        tl.store(weights_ptr + row * CHOICES + choice, weight)
        rank = tl.where(expert == best, -1.0, rank)
    tl.debug_barrier()
    place = row * CHOICES + expert
    taken = tl.load(weights_ptr + place, mask=expert < CHOICES, other=0.0)
    tl.store(weights_ptr + place, taken / chosen_sum, mask=expert < CHOICES)


@triton.jit
def gated_sum(routed_ptr, shared_ptr, gate_ptr, y_ptr, hidden, gate_stride, BLOCK: tl.constexpr):
    """routed + σ(gate) · shared, a row's block."""
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, place = channel < hidden, row * hidden + channel
    opened = 1 / (1 + tl.exp(-tl.load(gate_ptr + row * gate_stride).to(tl.float32)))
    routed = tl.load(routed_ptr + place, mask=inside, other=0.0).to(tl.float32)
    shared = tl.load(shared_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, (routed + opened * shared).to(y_ptr.dtype.element_ty), mask=inside)
