"""CUDA selection: scores of all visible groups, then an exact radix choice of the largest, a program for each row.

A score is a sum of terms that are at least zero, so its float32 bits order as integers: four passes over the scores
find the bits of the last one chosen, a fifth writes positions in rising order, the lower group first among equals.
Grids cover the whole page table; programs beyond a lane's length end at once. Rows come a slab at a time, so that the
scores of a prompt chunk do not need a buffer of chunk × context.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sparse_attention.contract import GROUP_TOKENS, Interval

_SLAB_ROWS = 512
_SCORE_ROWS = 8
_SCORE_GROUPS = 64
_SCAN = 2048


def select_positions(q: Tensor, pages: Tensor, interval: Interval, budget: int) -> Tensor:
    """See the card."""
    assert pages.is_contiguous(), "keys of groups run through the tokens of a page"
    q = q.contiguous()
    lanes, width, heads, index_dim = q.shape
    per_page, tables = pages.shape[1] // GROUP_TOKENS, interval.page_tables
    groups = tables.shape[1] * per_page
    slab = min(width, _SLAB_ROWS)
    scores = torch.empty(lanes, slab, groups, dtype=torch.float32, device=q.device)
    selection = torch.empty(lanes, width, budget + GROUP_TOKENS - 1, dtype=torch.int32, device=q.device)
    kept, padded_heads = budget // GROUP_TOKENS, triton.next_power_of_2(heads)
    for first in range(0, width, slab):
        rows = min(slab, width - first)
        _score[(triton.cdiv(groups, _SCORE_GROUPS), triton.cdiv(rows, _SCORE_ROWS), lanes)](
            q, pages, tables, interval.lengths, interval.counts, scores,
            first, first + rows, width, slab, groups, tables.stride(0), per_page, index_dim, heads, kept,
            index_dim**-0.5, HEADS=max(padded_heads, 16 // _SCORE_ROWS), ROWS=_SCORE_ROWS, GROUPS=_SCORE_GROUPS,
            PADDED=max(triton.next_power_of_2(index_dim), 16), GROUP=GROUP_TOKENS,
        )  # fmt: skip
        _choose[(rows, lanes)](
            scores, interval.lengths, interval.counts, selection,
            first, width, slab, groups, kept, selection.shape[2], GROUP=GROUP_TOKENS, SCAN=_SCAN, num_warps=8,
        )  # fmt: skip
    return selection


@triton.jit
def _score(
    q_ptr, pages_ptr, tables_ptr, lengths_ptr, counts_ptr, scores_ptr,
    first_row, stop_row, width, slab, groups, table_stride, per_page, index_dim, heads, kept, shrink,
    HEADS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(2).to(tl.int64)
    length = tl.load(lengths_ptr + lane)
    stop = tl.minimum(tl.load(counts_ptr + lane), stop_row)
    row_start = first_row + tl.program_id(1) * ROWS
    group_start = tl.program_id(0) * GROUPS
    # What the last of these rows sees; when it sees no more than it may keep, nobody asks for scores.
    visible = (length + tl.minimum(row_start + ROWS, stop)) // GROUP
    if (row_start < stop) & (group_start < visible) & (visible > kept):
        channel, pair = tl.arange(0, PADDED), tl.arange(0, ROWS * HEADS)
        row, head = row_start + pair // HEADS, pair % HEADS
        query_place = ((lane * width + row) * heads + head)[:, None] * index_dim + channel[None, :]
        query_mask = ((row < stop) & (head < heads))[:, None] & (channel < index_dim)[None, :]
        query = tl.load(q_ptr + query_place, mask=query_mask, other=0.0)
        group = group_start + tl.arange(0, GROUPS)
        seen = group < visible
        page = tl.load(tables_ptr + lane * table_stride + group // per_page, mask=seen, other=0).to(tl.int64)
        key_place = (page * per_page + group % per_page)[None, :] * index_dim + channel[:, None]
        keys = tl.load(pages_ptr + key_place, mask=seen[None, :] & (channel < index_dim)[:, None], other=0.0)
        products = tl.maximum(tl.dot(query, keys, input_precision="ieee"), 0.0)
        scores = tl.sum(tl.reshape(products, (ROWS, HEADS, GROUPS)), 1) * shrink
        scored = row_start + tl.arange(0, ROWS)
        place = (lane * slab + scored - first_row)[:, None] * groups + group[None, :]
        tl.store(scores_ptr + place, scores, mask=(scored < stop)[:, None] & seen[None, :])


@triton.jit
def _bits(scores_ptr, group, visible):
    """Scores as integers of the same order; the sign bit of a zero is dropped."""
    score = tl.load(scores_ptr + group, mask=group < visible, other=0.0)
    return score.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _choose(
    scores_ptr, lengths_ptr, counts_ptr, selection_ptr, first_row, width, slab, groups, kept, selected,
    GROUP: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    lane, slab_row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row = first_row + slab_row
    out = selection_ptr + (lane * width + row) * selected
    seen = tl.where(row < tl.load(counts_ptr + lane), tl.load(lengths_ptr + lane) + row + 1, 0).to(tl.int32)
    visible = seen // GROUP
    place = tl.arange(0, SCAN)
    if visible <= kept:
        for start in range(0, selected, SCAN):
            position = start + place
            tl.store(out + position, tl.where(position < seen, position, -1), mask=position < selected)
    else:
        scores = scores_ptr + (lane * slab + slab_row) * groups
        threshold, equals = _threshold(scores, visible, kept, SCAN)
        taken, met = 0, 0
        for start in range(0, visible, SCAN):
            group = start + place
            bits, real = _bits(scores, group, visible), group < visible
            equal = (real & (bits == threshold)).to(tl.int32)
            take = (real & (bits > threshold)) | ((equal > 0) & (met + tl.cumsum(equal, 0) <= equals))
            target = taken + tl.cumsum(take.to(tl.int32), 0) - 1
            for member in tl.static_range(GROUP):
                tl.store(out + target * GROUP + member, group * GROUP + member, mask=take)
            taken += tl.sum(take.to(tl.int32), 0)
            met += tl.sum(equal, 0)
        tail = tl.arange(0, GROUP)
        last = visible * GROUP + tail
        room = kept * GROUP + tail < selected
        tl.store(out + kept * GROUP + tail, tl.where(last < seen, last, -1), mask=room)


@triton.jit
def _threshold(scores_ptr, visible, kept, SCAN: tl.constexpr):
    """The bits of the kept-th largest score, and how many scores of these bits are among the kept."""
    digit, place = tl.arange(0, 256), tl.arange(0, SCAN)
    prefix, wanted = 0, kept
    for step in tl.static_range(4):
        shift = 24 - 8 * step
        counts = tl.zeros((256,), tl.int32)
        for start in range(0, visible, SCAN):
            group = start + place
            bits = _bits(scores_ptr, group, visible)
            candidate = group < visible
            if step > 0:
                candidate = candidate & ((bits >> (shift + 8)) == prefix)
            counts += tl.histogram((bits >> shift) & 255, 256, mask=candidate)
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        chosen = (above < wanted) & (above + counts >= wanted)
        wanted -= tl.sum(tl.where(chosen, above, 0), 0)
        prefix = prefix * 256 + tl.sum(tl.where(chosen, digit, 0), 0)
    return prefix, wanted
