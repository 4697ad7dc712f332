"""Triton kernels around the experts: pairs sorted by expert and cut into tiles, dense experts, sums, and the router.

A pair is `row · k + choice`. A tile is up to SEATS pairs of one expert: it reads the expert's matrix block once and
multiplies all its pairs by it. Grids hold as many tiles as could ever be needed; those past the last end at once. What
the second matrix reads is float32 and goes in two bfloat16 products, upper and lower halves. No atomics: a pair's
result depends on its row alone.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pairs"])
def count_choices(ids_ptr, counts_ptr, pairs, PADDED: tl.constexpr, BLOCK: tl.constexpr):
    """counts [blocks, PADDED]: how many pairs of a block chose each expert."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = entry < pairs
    ids = tl.load(ids_ptr + entry, mask=real, other=0).to(tl.int32)
    tl.store(counts_ptr + tl.program_id(0) * PADDED + tl.arange(0, PADDED), tl.histogram(ids, PADDED, mask=real))


@triton.jit
def counted(counts_ptr, PADDED: tl.constexpr, STEP: tl.constexpr):
    """Pairs of each expert [PADDED]: all of them, and those of blocks before this program's."""
    expert, block = tl.arange(0, PADDED), tl.arange(0, STEP)
    total, before = tl.zeros((PADDED,), tl.int32), tl.zeros((PADDED,), tl.int32)
    first = 0
    while first < tl.num_programs(0):
        beside = first + block
        at = beside[:, None] * PADDED + expert[None, :]
        counts = tl.load(counts_ptr + at, mask=(beside < tl.num_programs(0))[:, None], other=0)
        total += tl.sum(counts, 0)
        before += tl.sum(tl.where((beside < tl.program_id(0))[:, None], counts, 0), 0)
        first += STEP
    return total, before


@triton.jit(do_not_specialize=["pairs", "count"])
def sort_pairs(
    ids_ptr, counts_ptr, places_ptr, order_ptr, tiles_ptr, pairs, count,
    SEATS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """order [pairs]: a block of pairs put by expert, then by number, and its share of the tiles.

    tiles [3, count]: a tile's expert and its first and stop in the order; zeros past the last tile. places is scratch.
    """
    block, expert = tl.program_id(0), tl.arange(0, PADDED)
    total, before = counted(counts_ptr, PADDED, STEP)
    start = tl.cumsum(total, 0) - total
    tl.store(places_ptr + block * PADDED + expert, start + before)
    tl.debug_barrier()
    entry = block * BLOCK + tl.arange(0, BLOCK)
    real = entry < pairs
    ids = tl.load(ids_ptr + entry, mask=real, other=0)
    place = tl.load(places_ptr + block * PADDED + ids, mask=real, other=0)
    for first in range(0, BLOCK, STEP):
        beside = block * BLOCK + first + tl.arange(0, STEP)
        named = tl.load(ids_ptr + beside, mask=beside < pairs, other=-1)
        earlier = (ids[:, None] == named[None, :]) & (beside[None, :] < entry[:, None])
        place += tl.sum(earlier.to(tl.int32), 1)
    tl.store(order_ptr + place, entry, mask=real)
    first = block * STEP
    while first < count:
        cut_tiles(tiles_ptr, start, total, first + tl.arange(0, STEP), count, SEATS)
        first += tl.num_programs(0) * STEP


@triton.jit
def cut_tiles(tiles_ptr, start, total, tile, count, SEATS: tl.constexpr):
    """Tiles numbered `tile` of the experts whose pairs begin at start [PADDED] and are total [PADDED] many."""
    needed = (total + SEATS - 1) // SEATS
    nth = tile[:, None] - (tl.cumsum(needed, 0) - needed)[None, :]
    own = (nth >= 0) & (nth < needed[None, :])
    expert = tl.sum(tl.where(own, tl.arange(0, total.shape[0])[None, :], 0), 1)
    first = tl.sum(tl.where(own, start[None, :] + nth * SEATS, 0), 1)
    stop = tl.sum(tl.where(own, (start + total)[None, :], 0), 1)
    tl.store(tiles_ptr + tile, expert, mask=tile < count)
    tl.store(tiles_ptr + count + tile, first, mask=tile < count)
    tl.store(tiles_ptr + 2 * count + tile, stop, mask=tile < count)


@triton.jit
def tile_of(tiles_ptr):
    """Expert, first and stop of this program's tile."""
    tile_ptr = tiles_ptr + tl.program_id(1)
    count = tl.num_programs(1)
    return tl.load(tile_ptr), tl.load(tile_ptr + count), tl.load(tile_ptr + 2 * count)


@triton.jit
def added_product(total, x, rest, weight, HALVES: tl.constexpr):
    """total + (x + rest) · weightᵀ; `rest` counts where there are HALVES."""
    total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    if HALVES:
        total = tl.dot(rest, tl.trans(weight), total, input_precision="ieee")
    return total


@triton.jit
def added_block(total, x, rest, weight_ptr, column, start, columns: tl.constexpr, depth: tl.constexpr,
                BLOCK: tl.constexpr, HALVES: tl.constexpr):  # fmt: skip
    """total [pairs, columns] + (x + rest) [pairs, BLOCK] · the matrix's elements from `start` on."""
    element = start + tl.arange(0, BLOCK)
    inside = (column < columns)[:, None] & (element < depth)[None, :]
    place = column[:, None].to(tl.int64) * depth + element[None, :]
    weight = tl.load(weight_ptr + place, mask=inside, other=0.0).to(x.dtype)
    return added_product(total, x, rest, weight, HALVES)


@triton.jit(do_not_specialize=["pair_count"])
def gate_up(
    x_ptr, gate_ptr, up_ptr, gated_ptr, order_ptr, tiles_ptr, pair_count,
    HIDDEN: tl.constexpr, FFN: tl.constexpr, CHOICES: tl.constexpr,
    SEATS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """gated [halves, pairs, F] = silu(gate_e x) · (up_e x), dense weights."""
    expert, first, stop = tile_of(tiles_ptr)
    if first < stop:
        kind = x_ptr.dtype.element_ty
        entry = first + tl.arange(0, SEATS)
        chosen = entry < stop
        pairs = tl.load(order_ptr + entry, mask=chosen, other=0)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        x_row = x_ptr + (pairs // CHOICES).to(tl.int64)[:, None] * HIDDEN
        stored = expert.to(tl.int64) * FFN * HIDDEN
        gate, up = tl.zeros((SEATS, COLUMNS), tl.float32), tl.zeros((SEATS, COLUMNS), tl.float32)
        for start in range(0, HIDDEN, BLOCK):
            element = start + tl.arange(0, BLOCK)
            x_mask = chosen[:, None] & (element < HIDDEN)[None, :]
            x = tl.load(x_row + element[None, :], mask=x_mask, other=0.0)
            gate = added_block(gate, x, x, gate_ptr + stored, column, start, FFN, HIDDEN, BLOCK, False)
            up = added_block(up, x, x, up_ptr + stored, column, start, FFN, HIDDEN, BLOCK, False)
        gated = gate / (1 + tl.exp(-gate)) * up
        place = pairs.to(tl.int64)[:, None] * FFN + column[None, :]
        mask = chosen[:, None] & (column < FFN)[None, :]
        upper = gated.to(kind)
        tl.store(gated_ptr + place, upper, mask=mask)
        if kind != tl.float32:
            rest = (gated - upper.to(tl.float32)).to(kind)
            tl.store(gated_ptr + pair_count.to(tl.int64) * FFN + place, rest, mask=mask)


@triton.jit(do_not_specialize=["pair_count"])
def down(
    gated_ptr, down_ptr, out_ptr, order_ptr, tiles_ptr, pair_count,
    HIDDEN: tl.constexpr, FFN: tl.constexpr, SEATS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [pairs, H] float32 = down_e gated, dense weights."""
    expert, first, stop = tile_of(tiles_ptr)
    if first < stop:
        halves: tl.constexpr = gated_ptr.dtype.element_ty != tl.float32
        entry = first + tl.arange(0, SEATS)
        chosen = entry < stop
        pairs = tl.load(order_ptr + entry, mask=chosen, other=0)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        gated_row = gated_ptr + pairs.to(tl.int64)[:, None] * FFN
        rest_row = gated_row + pair_count.to(tl.int64) * FFN
        stored = expert.to(tl.int64) * HIDDEN * FFN
        total = tl.zeros((SEATS, COLUMNS), tl.float32)
        for start in range(0, FFN, BLOCK):
            element = start + tl.arange(0, BLOCK)
            gated_mask = chosen[:, None] & (element < FFN)[None, :]
            gated = tl.load(gated_row + element[None, :], mask=gated_mask, other=0.0)
            rest = gated
            if halves:
                rest = tl.load(rest_row + element[None, :], mask=gated_mask, other=0.0)
            total = added_block(total, gated, rest, down_ptr + stored, column, start, HIDDEN, FFN, BLOCK, halves)
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
