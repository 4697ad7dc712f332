"""Attention of a prompt chunk: one pass over a lane's past for every 64 rows, each page read once per tile."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_chunk(
    query,
    keys,
    values,
    page_tables,
    lengths,
    counts,
    y,
    scale,
    query_lane,
    query_row,
    query_head,
    token_stride,
    head_stride,
    table_lane,
    width,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program (tile, key head, lane): ROWS of the chunk's rows × query heads of one key head."""
    # The last tiles look furthest back, so they start first.
    tile, head, lane = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    member = tile * ROWS + tl.arange(0, ROWS)
    row = member // GROUP
    length, count = tl.load(lengths + lane).to(tl.int32), tl.load(counts + lane).to(tl.int32)
    active = row < tl.minimum(count, width)
    seen = tl.max(tl.where(active, length + row + 1, 0), 0)
    channel = tl.arange(0, CHANNELS)
    whole = (channel < DIM)[None, :]
    head_of_row = head * GROUP + member % GROUP
    start = query + lane.to(tl.int64) * query_lane + row.to(tl.int64)[:, None] * query_row
    q = tl.load(start + head_of_row[:, None] * query_head + channel[None, :], mask=active[:, None] & whole, other=0.0)
    last = length + row
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for first in tl.range(0, seen, PAGE, num_stages=STAGES):
        offset = tl.arange(0, PAGE)
        inside = first + offset < seen
        page = tl.load(page_tables + lane * table_lane + first // PAGE).to(tl.int64)
        token = (page * PAGE + offset) * token_stride + head.to(tl.int64) * head_stride
        place_k = keys + token[None, :] + channel[:, None]
        k = tl.load(place_k, mask=inside[None, :] & (channel < DIM)[:, None], other=0.0)
        v = tl.load(values + token[:, None] + channel[None, :], mask=inside[:, None] & whole, other=0.0)
        score = tl.dot(q, k, input_precision="ieee") * (scale * _LOG2E)
        score = tl.where(first + offset[None, :] <= last[:, None], score, float("-inf"))
        # Position 0 is visible to every row, so no maximum is −inf after the first page.
        higher = tl.maximum(top, tl.max(score, 1))
        share = tl.exp2(score - higher[:, None])
        kept = tl.exp2(top - higher)
        weight = weight * kept + tl.sum(share, 1)
        total = tl.dot(share.to(v.dtype), v, total * kept[:, None], input_precision="ieee")
        top = higher
    result = tl.where(active[:, None], total / tl.where(active, weight, 1.0)[:, None], 0.0)
    heads_total = tl.num_programs(1) * GROUP
    place = y + ((lane.to(tl.int64) * width + row) * heads_total + head_of_row)[:, None] * DIM + channel[None, :]
    tl.store(place, result.to(y.dtype.element_ty), mask=(row < width)[:, None] & whole)
