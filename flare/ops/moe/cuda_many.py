"""Triton kernels of the experts for many rows: NVFP4 weights widened once for a whole tile of pairs.

The weights are the tall side of the matrix instruction, 16 rows a warp: they come packed through shared memory, copied
some steps ahead, and are widened into the registers that the instruction reads. What they multiply, x or gated, is its
other side and goes straight to shared memory, shared by all warps. There the instruction reads k in order, while a lane
should read 16 bytes of a weight row at once and widen even and odd elements apart; so x and gated are stored arranged:
of each 128 elements first the 64 even ones, then the odd ones, each in the order in which lanes hold their weights.
A row is as long as whole tiles, zeros behind its elements.

A pair's sums are added by the same steps whatever its seat and the other pairs of its tile. No atomics.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.formats.cuda import SHRINK, scaled_pairs
from flare.ops.moe.cuda_kernels import tile_of

TILE = tl.constexpr(128)
"""Elements of a weight row in one step: 16 bytes for each of the four lanes that share the row."""


@triton.jit
def element_at(position):
    """The element of a row that lies at a position of its arrangement."""
    within, lane, pair = position % (TILE // 2), position % 8 // 2, position % 2
    byte = lane * 16 + within // 16 * 4 + within % 16 // 8 * 2 + pair
    return position // TILE * TILE + byte * 2 + position % TILE // (TILE // 2)


@triton.jit
def in_order(values, rows: tl.constexpr):
    return tl.reshape(tl.permute(tl.reshape(values, (rows, 4, 4, 2, 2)), (0, 2, 3, 1, 4)), (rows, TILE // 2))


@triton.jit
def widened(packed_row, scale_row, start, K: tl.constexpr, WHOLE: tl.constexpr, kind: tl.constexpr):
    """Even and odd elements [N, 64] from `start` on of the rows at pointers [N]."""
    rows: tl.constexpr = packed_row.shape[0]
    at_byte, at_block = start // 2 + tl.arange(0, TILE // 2), start // 16 + tl.arange(0, TILE // 16)
    packed_at, scale_at = packed_row[:, None] + at_byte[None, :], scale_row[:, None] + at_block[None, :]
    if WHOLE:
        packed, scale = tl.load(packed_at), tl.load(scale_at)
    else:
        packed = tl.load(packed_at, mask=(at_byte < K // 2)[None, :], other=0)
        scale = tl.load(scale_at, mask=(at_block < K // 16)[None, :], other=0.0)
    blocks = tl.reshape(scale.to(tl.float32), (rows, TILE // 16, 1))
    even, odd = scaled_pairs(tl.reshape(packed, (rows, TILE // 16, 8)), blocks, kind)
    return in_order(even, rows), in_order(odd, rows)


@triton.jit
def arranged(x_ptr, y_ptr, HIDDEN: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """y [R, LONG]: rows of x [R, HIDDEN] arranged."""
    row, position = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    element = element_at(position)
    x = tl.load(x_ptr + row * HIDDEN + element, mask=element < HIDDEN, other=0.0)
    tl.store(y_ptr + row * LONG + position, x, mask=position < LONG)


@triton.jit
def seated(order_ptr, first, stop, SEATS: tl.constexpr):
    """Pairs [SEATS] int64 of a tile, and which seats are taken."""
    entry = first + tl.arange(0, SEATS)
    taken = entry < stop
    return tl.load(order_ptr + entry, mask=taken, other=0).to(tl.int64), taken


@triton.jit
def value_tile(value_row, start, taken):
    """Even and odd elements [64, SEATS] of the arranged rows at pointers [SEATS]; zeros where nobody sits."""
    at = value_row[None, :] + (start + tl.arange(0, TILE // 2))[:, None]
    even = tl.load(at, mask=taken[None, :], other=0.0)
    return even, tl.load(at + TILE // 2, mask=taken[None, :], other=0.0)


@triton.jit
def gate_up_many(
    x_ptr, gate_ptr, gate_scale_ptr, gate_factor_ptr, up_ptr, up_scale_ptr, up_factor_ptr, gated_ptr,
    order_ptr, tiles_ptr, gated_elements,
    HIDDEN: tl.constexpr, LONG: tl.constexpr, FFN: tl.constexpr, WIDE: tl.constexpr, CHOICES: tl.constexpr,
    SEATS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """gated [halves, pairs, WIDE] arranged = silu(gate_e x) · (up_e x), x [R, LONG] arranged."""
    expert, first, stop = tile_of(tiles_ptr)
    if first < stop:
        kind: tl.constexpr = x_ptr.dtype.element_ty
        pair, taken = seated(order_ptr, first, stop, SEATS)
        # A program takes the channels of neighbouring places, so that it stores whole runs of them.
        position = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        column = element_at(position)
        channel = expert.to(tl.int64) * FFN + tl.minimum(column, FFN - 1)
        at_byte, at_scale = channel * (HIDDEN // 2), channel * (HIDDEN // 16)
        x_row = x_ptr + pair // CHOICES * LONG
        gate, up = tl.zeros((COLUMNS, SEATS), tl.float32), tl.zeros((COLUMNS, SEATS), tl.float32)
        for start in tl.range(0, LONG, TILE, num_stages=STAGES):
            x_even, x_odd = value_tile(x_row, start, taken)
            even, odd = widened(gate_ptr + at_byte, gate_scale_ptr + at_scale, start, HIDDEN, LONG == HIDDEN, kind)
            gate = tl.dot(even, x_even, gate, input_precision="ieee")
            gate = tl.dot(odd, x_odd, gate, input_precision="ieee")
            even, odd = widened(up_ptr + at_byte, up_scale_ptr + at_scale, start, HIDDEN, LONG == HIDDEN, kind)
            up = tl.dot(even, x_even, up, input_precision="ieee")
            up = tl.dot(odd, x_odd, up, input_precision="ieee")
        gate *= tl.load(gate_factor_ptr + expert) / SHRINK
        up *= tl.load(up_factor_ptr + expert) / SHRINK
        gated = tl.where((column < FFN)[:, None], gate / (1 + tl.exp(-gate)) * up, 0.0)
        place = pair[None, :] * WIDE + position[:, None]
        mask = taken[None, :] & (position < WIDE)[:, None]
        upper = gated.to(kind)
        tl.store(gated_ptr + place, upper, mask=mask)
        if HALVES:
            tl.store(gated_ptr + gated_elements + place, (gated - upper.to(tl.float32)).to(kind), mask=mask)


@triton.jit
def down_many(
    gated_ptr, down_ptr, scale_ptr, factor_ptr, out_ptr, order_ptr, tiles_ptr, gated_elements,
    HIDDEN: tl.constexpr, FFN: tl.constexpr, WIDE: tl.constexpr,
    SEATS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """out [pairs, H] float32 = down_e gated, gated as `gate_up_many` left it."""
    expert, first, stop = tile_of(tiles_ptr)
    if first < stop:
        kind: tl.constexpr = gated_ptr.dtype.element_ty
        pair, taken = seated(order_ptr, first, stop, SEATS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        stored = expert.to(tl.int64) * HIDDEN + tl.minimum(column, HIDDEN - 1)
        packed_row, scale_row = down_ptr + stored * (FFN // 2), scale_ptr + stored * (FFN // 16)
        gated_row = gated_ptr + pair * WIDE
        total = tl.zeros((COLUMNS, SEATS), tl.float32)
        for start in tl.range(0, WIDE, TILE, num_stages=STAGES):
            even, odd = widened(packed_row, scale_row, start, FFN, WIDE == FFN, kind)
            gated_even, gated_odd = value_tile(gated_row, start, taken)
            total = tl.dot(even, gated_even, total, input_precision="ieee")
            total = tl.dot(odd, gated_odd, total, input_precision="ieee")
            if HALVES:
                rest_even, rest_odd = value_tile(gated_row + gated_elements, start, taken)
                total = tl.dot(even, rest_even, total, input_precision="ieee")
                total = tl.dot(odd, rest_odd, total, input_precision="ieee")
        total *= tl.load(factor_ptr + expert) / SHRINK
        place = pair[None, :] * HIDDEN + column[:, None]
        tl.store(out_ptr + place, total, mask=taken[None, :] & (column < HIDDEN)[:, None])
