"""Triton kernels of the experts for few rows: one warp per few output columns, NVFP4 weights in registers.

So few rows choose an expert about once each, so what counts is how many bytes are under way and how few instructions a
weight costs. The weights are the tall side of the matrix instruction, its eight columns are the seats of rows that
chose the expert. Lane 4 g + t of the warp reads 16 bytes of row g at byte 16 t of each 64: those are the places where
the instruction wants that row's weights, in some order of k. The same order is given to x, so nothing goes through
shared memory. A step's loads all leave before its first product; a barrier keeps the compiler from undoing that.

A pair is `row · k + choice`. Up to `rows` that a program can look through, the program of the first pair that names an
expert takes all rows that chose it, eight at a time; the others end at once. Where looking would cost more than the
launches that sort pairs, a program takes a tile of up to eight of them. Seats nobody took repeat a pair of the program
and are not stored. A pair's sums are added by the same steps whatever its seat and the other rows, sorted or not, so
its bits depend on its row alone. No atomics.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.formats.cuda import SHRINK, scaled_pairs
from flare.ops.moe.cuda_kernels import tile_of

SEATS = tl.constexpr(8)
"""Columns of the matrix instruction."""
TILE = tl.constexpr(128)
"""Elements of a weight row that a warp reads at once, 16 bytes per lane."""


@triton.jit
def choices_of(ids_ptr, expert, rows, CHOICES: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Pairs [ROWS, PADDED], and which of them chose the expert."""
    row, choice = tl.arange(0, ROWS), tl.arange(0, PADDED)
    place = row[:, None] * CHOICES + choice[None, :]
    real = (row < rows)[:, None] & (choice < CHOICES)[None, :]
    return place, tl.load(ids_ptr + place, mask=real, other=-1) == expert


@triton.jit
def choosers(ids_ptr, rows, CHOICES: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """This program's expert, and how many rows chose it: none where an earlier pair named it too."""
    expert = tl.load(ids_ptr + tl.program_id(1))
    place, hit = choices_of(ids_ptr, expert, rows, CHOICES, PADDED, ROWS)
    # One sum for both: the rows that chose it, and far above them those that did so in an earlier pair.
    both = tl.sum(tl.where(hit, tl.where(place < tl.program_id(1), ROWS * 2, 1), 0))
    return expert, tl.where(both < ROWS * 2, both, 0)


@triton.jit
def work_of(ids_ptr, tiles_ptr, rows, CHOICES: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """This program's expert, and first and stop of its pairs: ranks among the choosers, or places in the order."""
    if ROWS > 0:
        expert, stop = choosers(ids_ptr, rows, CHOICES, PADDED, ROWS)
        first = stop * 0
    else:
        expert, first, stop = tile_of(tiles_ptr)
        expert = expert.to(tl.int64)
    return expert, first, stop


@triton.jit
def seated(
    ids_ptr, order_ptr, expert, first, stop, rows,
    CHOICES: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Pairs [SEATS] from `first` on, and which seats are taken.

    Choices looked through are read again, so that they need no registers while weights do.
    """
    if ROWS > 0:
        place, hit = choices_of(ids_ptr, expert, rows, CHOICES, PADDED, ROWS)
        # A row chose it once or not at all: 0, or its pair and 1 more.
        pairs = tl.sum(tl.where(hit, place + 1, 0), 1)
        chosen = (pairs > 0).to(tl.int32)
        rank = tl.where(pairs > 0, tl.cumsum(chosen, 0) - 1, -1)
        hit = rank[:, None] == (first + tl.arange(0, SEATS))[None, :]
        pair = tl.sum(tl.where(hit, pairs[:, None], 0), 0)
        taken = pair > 0
        pair = tl.where(taken, pair - 1, tl.program_id(1))
    else:
        entry = first + tl.arange(0, SEATS)
        taken = entry < stop
        pair = tl.load(order_ptr + tl.minimum(entry, stop - 1))
    return pair, taken


@triton.jit
def stored_step(packed_row, scale_row, start, K: tl.constexpr, TILES: tl.constexpr, WHOLE: tl.constexpr):
    """TILES tiles from element `start` on of the rows at pointers [N], each bytes [N, 64] and scales [2, 4, N]."""
    byte, half, lane = tl.arange(0, TILE // 2), tl.arange(0, 2), tl.arange(0, 4)
    block = lane[None, :, None] * 2 + half[:, None, None]
    packed_row, scale_row = packed_row[:, None], scale_row[None, None, :]
    tiles = ()
    for tile in tl.static_range(TILES):
        at_byte, at_block = start // 2 + tile * (TILE // 2) + byte[None, :], start // 16 + tile * (TILE // 16) + block
        if WHOLE:
            packed, scale = tl.load(packed_row + at_byte), tl.load(scale_row + at_block)
        else:
            packed = tl.load(packed_row + at_byte, mask=at_byte < K // 2, other=0)
            scale = tl.load(scale_row + at_block, mask=at_block < K // 16, other=0.0)
        tiles = tiles + ((packed, scale),)  # noqa: RUF005
    return tiles


@triton.jit
def widened(packed, scale, kind: tl.constexpr):
    """Even and odd elements [N, 64] of a tile, each the order of k (lane's quarter byte, lane, byte of four)."""
    rows: tl.constexpr = packed.shape[0]
    blocks = tl.reshape(tl.permute(scale.to(tl.float32), (2, 1, 0)), (rows, 8, 1))
    even, odd = scaled_pairs(tl.reshape(packed, (rows, 8, 8)), blocks, kind)
    return in_order(even, rows), in_order(odd, rows)


@triton.jit
def in_order(values, rows: tl.constexpr):
    return tl.reshape(tl.permute(tl.reshape(values, (rows, 4, 4, 4)), (0, 2, 1, 3)), (rows, TILE // 2))


@triton.jit
def value_tile(x_row, start, K: tl.constexpr, WHOLE: tl.constexpr):
    """Even and odd elements [64, SEATS] of the rows at x_row [SEATS] from `start` on, in the weights' order of k."""
    quarter, element = tl.arange(0, 4), tl.arange(0, 32)
    place = start + quarter[None, :, None] * 8 + (element // 8 * 32 + element % 8)[None, None, :]
    if WHOLE:
        x = tl.load(x_row[:, None, None] + place)
    else:
        x = tl.load(x_row[:, None, None] + place, mask=place < K, other=0.0)
    even, odd = tl.split(tl.reshape(x, (SEATS, TILE // 2, 2)))
    return tl.trans(even), tl.trans(odd)


@triton.jit
def added(total, even, odd, x_row, start, K: tl.constexpr, WHOLE: tl.constexpr):
    """total [N, SEATS] + one tile's product with the rows at x_row."""
    x_even, x_odd = value_tile(x_row, start, K, WHOLE)
    total = tl.dot(even, x_even, total, input_precision="ieee")
    return tl.dot(odd, x_odd, total, input_precision="ieee")


@triton.jit(do_not_specialize=["rows"])
def gate_up_few(
    x_ptr, gate_ptr, gate_scale_ptr, gate_factor_ptr, up_ptr, up_scale_ptr, up_factor_ptr, gated_ptr,
    ids_ptr, order_ptr, tiles_ptr, rows,
    HIDDEN: tl.constexpr, FFN: tl.constexpr, CHOICES: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """gated [halves, pairs, F] = silu(gate_e x) · (up_e x), COLUMNS of it.

    ids are the choices [R, k], looked through where ROWS ≥ R is given; ROWS of 0 reads `order` and `tiles`.
    """
    expert, first, stop = work_of(ids_ptr, tiles_ptr, rows, CHOICES, PADDED, ROWS)
    if first < stop:
        kind: tl.constexpr = x_ptr.dtype.element_ty
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        # Gate above up, so that both sums of a channel end in one lane. Channels past the last repeat it.
        stacked = tl.arange(0, 2 * COLUMNS)
        channel = expert * FFN + tl.minimum(tl.program_id(0) * COLUMNS + stacked % COLUMNS, FFN - 1)
        at_byte, at_scale = channel * (HIDDEN // 2), channel * (HIDDEN // 16)
        packed_row = tl.where(stacked < COLUMNS, gate_ptr + at_byte, up_ptr + at_byte)
        scale_row = tl.where(stacked < COLUMNS, gate_scale_ptr + at_scale, up_scale_ptr + at_scale)
        gate_factor, up_factor = tl.load(gate_factor_ptr + expert), tl.load(up_factor_ptr + expert)
        while first < stop:
            pair, taken = seated(ids_ptr, order_ptr, expert, first, stop, rows, CHOICES, PADDED, ROWS)
            x_row = x_ptr + pair // CHOICES * HIDDEN
            total = tl.zeros((2 * COLUMNS, SEATS), tl.float32)
            for start in range(0, HIDDEN, TILE * TILES):
                tiles = stored_step(packed_row, scale_row, start, HIDDEN, TILES, WHOLE)
                tl.debug_barrier()
                for tile in tl.static_range(TILES):
                    even, odd = widened(tiles[tile][0], tiles[tile][1], kind)
                    total = added(total, even, odd, x_row, start + tile * TILE, HIDDEN, WHOLE)
            gate, up = tl.split(tl.permute(tl.reshape(total, (2, COLUMNS, SEATS)), (1, 2, 0)))
            gate, up = gate * (gate_factor / SHRINK), up * (up_factor / SHRINK)
            gated = gate / (1 + tl.exp(-gate)) * up
            place = pair[None, :] * FFN + column[:, None]
            mask = taken[None, :] & (column < FFN)[:, None]
            upper = gated.to(kind)
            tl.store(gated_ptr + place, upper, mask=mask)
            if kind != tl.float32:
                rest = (gated - upper.to(tl.float32)).to(kind)
                tl.store(gated_ptr + rows * CHOICES * FFN + place, rest, mask=mask)
            first += SEATS


@triton.jit(do_not_specialize=["rows"])
def down_few(
    gated_ptr, down_ptr, scale_ptr, factor_ptr, out_ptr, ids_ptr, order_ptr, tiles_ptr, rows,
    HIDDEN: tl.constexpr, FFN: tl.constexpr, CHOICES: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """out [pairs, H] float32 = down_e gated, COLUMNS of it; choices as in `gate_up_few`."""
    expert, first, stop = work_of(ids_ptr, tiles_ptr, rows, CHOICES, PADDED, ROWS)
    if first < stop:
        kind: tl.constexpr = gated_ptr.dtype.element_ty
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        stored = expert * HIDDEN + tl.minimum(column, HIDDEN - 1)
        packed_row, scale_row = down_ptr + stored * (FFN // 2), scale_ptr + stored * (FFN // 16)
        factor = tl.load(factor_ptr + expert)
        while first < stop:
            pair, taken = seated(ids_ptr, order_ptr, expert, first, stop, rows, CHOICES, PADDED, ROWS)
            gated_row = gated_ptr + pair * FFN
            total = tl.zeros((COLUMNS, SEATS), tl.float32)
            for start in range(0, FFN, TILE * TILES):
                tiles = stored_step(packed_row, scale_row, start, FFN, TILES, WHOLE)
                tl.debug_barrier()
                for tile in tl.static_range(TILES):
                    at = start + tile * TILE
                    even, odd = widened(tiles[tile][0], tiles[tile][1], kind)
                    total = added(total, even, odd, gated_row, at, FFN, WHOLE)
                    if kind != tl.float32:
                        total = added(total, even, odd, gated_row + rows * CHOICES * FFN, at, FFN, WHOLE)
            place = pair[None, :] * HIDDEN + column[:, None]
            mask = taken[None, :] & (column < HIDDEN)[:, None]
            tl.store(out_ptr + place, total * (factor / SHRINK), mask=mask)
            first += SEATS
