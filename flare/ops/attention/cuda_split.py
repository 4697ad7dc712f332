"""Attention of a round: a lane's past is cut into splits of fixed positions; the last split to finish joins them.

All rows of a lane and all query heads of a key head are the rows of one product, 16 at a time (a *tile*). A split is
decided by absolute positions alone and a tile has 16 rows whatever is in it, so a row's bits depend on neither batch
nor width. Which program joins is a matter of chance; what it computes is not: it reads every split in order.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.cuda_early import await_earlier

TILE_ROWS = 16

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_splits(
    query,
    keys,
    values,
    page_tables,
    lengths,
    counts,
    y,
    partial,
    statistics,
    tickets,
    scale,
    query_lane,
    query_row,
    query_head,
    token_stride,
    head_stride,
    table_lane,
    table_tokens,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    JOINED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (key head · tiles + tile, lane, split): splits without positions come last and hold nobody up.

    Args:
        partial: [lanes, key heads · tiles, SPLITS, 16, CHANNELS] float32 sums of values, weighted by exp2.
        statistics: [2, lanes, key heads · tiles, SPLITS, 16] float32: their largest exponents, and sums of weights.
        tickets: [lanes · key heads · tiles] int32, zeros before and after.
        table_tokens: positions a table has pages for.
        SPLIT: positions of a split, a multiple of BLOCK; JOINED: splits the join reads at once.
    """
    lane, split = tl.program_id(1), tl.program_id(2)
    tiles: tl.constexpr = (WIDTH * GROUP + 15) // 16
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    member = tile * 16 + tl.arange(0, 16)
    row, channel = member // GROUP, tl.arange(0, CHANNELS)
    held, whole = member < WIDTH * GROUP, (channel < DIM)[None, :]
    unit, head_of_row = lane * tl.num_programs(0) + tl.program_id(0), head * GROUP + member % GROUP
    # Lengths and pages are the round's, written long before, and read past L1, which may be older; the queries and
    # their keys come from the kernel before this one.
    length = tl.load(lengths + lane, cache_modifier=".cg").to(tl.int32)
    count = tl.load(counts + lane, cache_modifier=".cg").to(tl.int32)
    table = page_tables + lane * table_lane
    position = split * SPLIT + tl.arange(0, BLOCK)
    page = tl.load(table + position // PAGE, mask=position < table_tokens, other=0, cache_modifier=".cg")
    await_earlier(EARLY)
    start = query + lane.to(tl.int64) * query_lane + head_of_row[:, None] * query_head + row[:, None] * query_row
    q = tl.load(start + channel[None, :], mask=held[:, None] & whole, other=0.0)
    active = held & (row < count)
    q = tl.where(active[:, None], q, 0.0)
    seen = length + tl.minimum(count, (tl.minimum(tile * 16 + 16, WIDTH * GROUP) - 1) // GROUP + 1)
    live = tl.where(tile * 16 // GROUP < count, (seen + SPLIT - 1) // SPLIT, 0)
    heads_total = (tl.num_programs(0) // tiles) * GROUP
    place = y + ((lane * WIDTH + row) * heads_total + head_of_row)[:, None] * DIM + channel[None, :]
    stored = held[:, None] & whole
    if live == 0:
        if split == 0:
            tl.store(place, tl.zeros((16, CHANNELS), y.dtype.element_ty), mask=stored)
    elif split < live:
        own_head = head.to(tl.int64) * head_stride
        top, weight, total = _attend(
            q, keys + own_head, values + own_head, table, page, length + row, split * SPLIT,
            tl.minimum(seen, (split + 1) * SPLIT), scale, token_stride, DIM, CHANNELS, PAGE, SPLIT, BLOCK,
        )  # fmt: skip
        if live == 1:
            result = tl.where(active[:, None], total / tl.where(active, weight, 1.0)[:, None], 0.0)
            tl.store(place, result.to(y.dtype.element_ty), mask=stored)
        else:
            slot = (unit * SPLITS + split) * 16 + tl.arange(0, 16)
            spread = tl.num_programs(1) * tl.num_programs(0) * SPLITS * 16
            tl.store(statistics + slot, top, mask=active)
            tl.store(statistics + spread + slot, weight, mask=active)
            tl.store(partial + slot[:, None] * CHANNELS + channel[None, :], total, mask=active[:, None])
            # Every warp's stores come before the one thread's ticket that publishes them.
            tl.debug_barrier()
            ticket = tl.atomic_add(tickets + unit, 1, sem="acq_rel", scope="gpu")
            if ticket == live - 1:
                tl.store(tickets + unit, 0)
                joined = _join(partial, statistics, spread, unit, live, active, CHANNELS, SPLITS, JOINED)
                tl.store(place, tl.where(active[:, None], joined, 0.0).to(y.dtype.element_ty), mask=stored)


@triton.jit
def _attend(
    q, keys, values, table, page, last, start, stop, scale, token_stride,
    DIM: tl.constexpr, CHANNELS: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows q [16, CHANNELS] over positions start … stop − 1 of one key head, row i up to position last[i].

    Args:
        page: [BLOCK] pages of the first positions, which is all of them where SPLIT is BLOCK.

    Returns: largest exponent [16] (−inf where a row sees nothing), sum of weights [16], weighted values [16, CHANNELS].
    """
    top, weight = tl.full((16,), float("-inf"), tl.float32), tl.zeros((16,), tl.float32)
    total = tl.zeros((16, CHANNELS), tl.float32)
    # A loop even where it runs once: its reads go to shared memory unattended, those of values beside those of keys.
    for first in tl.range(start, stop, BLOCK, num_stages=2):
        if SPLIT == BLOCK:
            pages = page
        else:
            position = first + tl.arange(0, BLOCK)
            pages = tl.load(table + position // PAGE, mask=position < stop, other=0)
        top, weight, total = _step(
            q, keys, values, pages, last, first, stop, scale, token_stride, top, weight, total,
            DIM, CHANNELS, PAGE, BLOCK,
        )  # fmt: skip
    return top, weight, total


@triton.jit
def _step(
    q, keys, values, pages, last, first, stop, scale, token_stride, top, weight, total,
    DIM: tl.constexpr, CHANNELS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The running softmax after BLOCK more positions."""
    channel, position = tl.arange(0, CHANNELS), first + tl.arange(0, BLOCK)
    inside = position < stop
    token = (pages.to(tl.int64) * PAGE + position % PAGE) * token_stride
    k = tl.load(keys + token[None, :] + channel[:, None], mask=inside[None, :] & (channel < DIM)[:, None], other=0.0)
    v = tl.load(values + token[:, None] + channel[None, :], mask=inside[:, None] & (channel < DIM)[None, :], other=0.0)
    score = tl.dot(q, k, input_precision="ieee") * (scale * _LOG2E)
    score = tl.where((position[None, :] <= last[:, None]) & inside[None, :], score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    share, kept = tl.exp2(score - base[:, None]), tl.exp2(top - base)
    weight = weight * kept + tl.sum(share, 1)
    total = tl.dot(share.to(v.dtype), v, total * kept[:, None], input_precision="ieee")
    return higher, weight, total


@triton.jit
def _join(
    partial,
    statistics,
    spread,
    unit,
    live,
    active,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
    JOINED: tl.constexpr,
):
    """Softmax of a tile's active rows from its first `live` splits: [16, CHANNELS] float32."""
    top, weight = tl.full((16,), float("-inf"), tl.float32), tl.zeros((16,), tl.float32)
    total = tl.zeros((16, CHANNELS), tl.float32)
    if SPLITS == JOINED:
        top, weight, total = _join_some(
            partial, statistics, spread, unit * SPLITS, live, active, top, weight, total, CHANNELS, JOINED
        )
    else:
        for first in range(0, live, JOINED):
            top, weight, total = _join_some(
                partial, statistics, spread, unit * SPLITS + first, live - first, active, top, weight, total,
                CHANNELS, JOINED,
            )  # fmt: skip
    return total / tl.where(weight > 0, weight, 1.0)[:, None]


@triton.jit
def _join_some(
    partial, statistics, spread, first, live, active, top, weight, total, CHANNELS: tl.constexpr, JOINED: tl.constexpr
):
    """The running softmax after up to JOINED more splits.

    All are asked for before one is used, past L1, which may be older; a split is a tile of its own, so that each thread
    adds up its own elements.
    """
    channel = tl.arange(0, CHANNELS)
    tops, weights, parts = (), (), ()
    higher = top
    for index in tl.static_range(JOINED):
        slot = (first + index) * 16 + tl.arange(0, 16)
        held = active & (index < live)
        part = partial + slot[:, None] * CHANNELS + channel[None, :]
        tops = tops + (tl.load(statistics + slot, mask=held, other=float("-inf"), cache_modifier=".cg"),)  # noqa: RUF005
        weights = weights + (tl.load(statistics + spread + slot, mask=held, other=0.0, cache_modifier=".cg"),)  # noqa: RUF005
        parts = parts + (tl.load(part, mask=held[:, None], other=0.0, cache_modifier=".cg"),)  # noqa: RUF005
    for index in tl.static_range(JOINED):
        higher = tl.maximum(higher, tops[index])
    base = tl.where(higher == float("-inf"), 0.0, higher)
    kept = tl.exp2(top - base)
    weight, total = weight * kept, total * kept[:, None]
    for index in tl.static_range(JOINED):
        share = tl.exp2(tops[index] - base)
        weight += weights[index] * share
        total += parts[index] * share[:, None]
    return higher, weight, total
