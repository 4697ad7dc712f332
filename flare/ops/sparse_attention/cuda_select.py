"""CUDA selection: scores of all visible groups, then an exact choice of the largest, a program for each row.

A wide table is chosen from in two steps. Groups form *spans* of consecutive groups, whose *peak* is their best score:
the kept best groups lie in the kept best spans — a group outside them has, for each, one ahead of itself, because
among equals the lower comes first on both levels. So a row looks at its peaks and then at the groups of kept spans,
however scores are distributed, and needs no counters that several programs share.
Grids cover the whole page table; programs beyond a lane's length end at once. Rows come a slab at a time, so that the
scores of a prompt chunk do not need a buffer of chunk × context.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sparse_attention.contract import GROUP_TOKENS, Interval

_SLAB_ROWS = 512
_SCORE_ROWS = 8
_SCORE_GROUPS = 64
_SCORE_WARPS = 4
_SPANS = (1, 2, 4, 8, 16, 32, 64)
_STEP_COST = 4096
"""What a further step of a choice costs beside looking at its candidates, in candidates."""
_CANDIDATES_OF_WARP = 512
_MOST_WARPS = 16
_MOST_CANDIDATES = 2**15


def select_positions(q: Tensor, pages: Tensor, interval: Interval, budget: int) -> Tensor:
    """See the card."""
    assert pages.is_contiguous(), "keys of groups run through the tokens of a page"
    q = q.contiguous()
    lanes, width, heads, index_dim = q.shape
    per_page, tables = pages.shape[1] // GROUP_TOKENS, interval.page_tables
    groups, kept = tables.shape[1] * per_page, budget // GROUP_TOKENS
    slab = min(width, _SLAB_ROWS)
    span = _span(groups, kept)
    spans, (peaked, candidates) = triton.cdiv(groups, span), _looked_at(groups, kept, span)
    assert max(peaked, candidates) <= _MOST_CANDIDATES, "ranks are counted in half a number"
    scores = torch.empty(lanes, slab, groups, dtype=torch.float32, device=q.device)
    peaks = torch.empty(lanes, slab, spans if span > 1 else 0, dtype=torch.float32, device=q.device)
    best = torch.empty(lanes, slab, kept if span > 1 else 0, dtype=torch.int32, device=q.device)
    selection = torch.empty(lanes, width, budget + GROUP_TOKENS - 1, dtype=torch.int32, device=q.device)
    padded_heads = triton.next_power_of_2(heads)
    for first in range(0, width, slab):
        rows = min(slab, width - first)
        if groups > kept:
            _score[(triton.cdiv(groups, _SCORE_GROUPS), triton.cdiv(rows, _SCORE_ROWS), lanes)](
                q, pages, tables, interval.lengths, interval.counts, scores, peaks,
                first, first + rows, width, slab, groups, spans, tables.stride(0), per_page, index_dim, heads, kept,
                index_dim**-0.5, HEADS=max(padded_heads, 16 // _SCORE_ROWS), ROWS=_SCORE_ROWS, GROUPS=_SCORE_GROUPS,
                PADDED=max(triton.next_power_of_2(index_dim), 16), GROUP=GROUP_TOKENS, SPAN=span,
                num_warps=_SCORE_WARPS,
            )  # fmt: skip
        _choose[(rows, lanes)](
            scores, peaks, best, interval.lengths, interval.counts, selection,
            first, width, slab, groups, spans, kept, selection.shape[2],
            GROUP=GROUP_TOKENS, SPAN=span, PEAKED=peaked, CANDIDATES=candidates,
            num_warps=min(max(max(peaked, candidates) // _CANDIDATES_OF_WARP, 4), _MOST_WARPS),
        )  # fmt: skip
    return selection


def _span(groups: int, kept: int) -> int:
    """Groups of a span for a table of so many groups; 1 where all groups are looked at in one step."""

    def cost(span: int) -> int:
        return sum(_looked_at(groups, kept, span)) + (_STEP_COST if span > 1 else 0)

    return min(_SPANS, key=cost)


def _looked_at(groups: int, kept: int, span: int) -> tuple[int, int]:
    """Peaks and groups that a choice looks at, as powers of two."""
    if span == 1:
        return 1, triton.next_power_of_2(groups)
    return triton.next_power_of_2(triton.cdiv(groups, span)), triton.next_power_of_2(kept * span)


@triton.jit
def _score(
    q_ptr, pages_ptr, tables_ptr, lengths_ptr, counts_ptr, scores_ptr, peaks_ptr,
    first_row, stop_row, width, slab, groups, spans, table_stride, per_page, index_dim, heads, kept, shrink,
    HEADS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """Program (GROUPS groups, ROWS rows, lane): scores, and of spans longer than one group their peaks."""
    lane = tl.program_id(2).to(tl.int64)
    row_start, group_start = first_row + tl.program_id(1) * ROWS, tl.program_id(0) * GROUPS
    # Lengths, pages and queries are asked for at once; only keys wait for what they say.
    length, count = tl.load(lengths_ptr + lane), tl.load(counts_ptr + lane)
    group = group_start + tl.arange(0, GROUPS)
    page = tl.load(tables_ptr + lane * table_stride + group // per_page, mask=group < groups, other=0).to(tl.int64)
    channel, pair = tl.arange(0, PADDED), tl.arange(0, ROWS * HEADS)
    row, head = row_start + pair // HEADS, pair % HEADS
    query_place = ((lane * width + row) * heads + head)[:, None] * index_dim + channel[None, :]
    query_mask = ((row < stop_row) & (head < heads))[:, None] & (channel < index_dim)[None, :]
    query = tl.load(q_ptr + query_place, mask=query_mask, other=0.0)
    stop = tl.minimum(count, stop_row)
    # What the last of these rows sees; when it sees no more than it may keep, nobody asks for scores.
    visible = (length + tl.minimum(row_start + ROWS, stop)) // GROUP
    if (row_start < stop) & (group_start < visible) & (visible > kept):
        seen = group < visible
        key_place = (page * per_page + group % per_page)[None, :] * index_dim + channel[:, None]
        keys = tl.load(pages_ptr + key_place, mask=seen[None, :] & (channel < index_dim)[:, None], other=0.0)
        # A maximum drops what is not a number, so that scores order as the integers of their bits.
        products = tl.maximum(tl.dot(query, keys, input_precision="ieee"), 0.0)
        scores = tl.sum(tl.reshape(products, (ROWS, HEADS, GROUPS)), 1) * shrink
        scored = row_start + tl.arange(0, ROWS)
        kept_row, active = lane * slab + scored - first_row, (scored < stop)[:, None]
        tl.store(scores_ptr + kept_row[:, None] * groups + group[None, :], scores, mask=active & seen[None, :])
        if SPAN > 1:
            peaks = _peaks(scores, group, (length + scored + 1) // GROUP, ROWS, GROUPS, SPAN)
            span = group_start // SPAN + tl.arange(0, GROUPS // SPAN)
            inside = active & (span * SPAN < visible)[None, :]
            tl.store(peaks_ptr + kept_row[:, None] * spans + span[None, :], peaks, mask=inside)


@triton.jit
def _peaks(scores, group, visible, ROWS: tl.constexpr, GROUPS: tl.constexpr, SPAN: tl.constexpr):
    """Best scores [ROWS, GROUPS / SPAN] of spans among the groups that each row sees itself."""
    own = tl.where(group[None, :] < visible[:, None], scores, -1.0)
    return tl.max(tl.reshape(own, (ROWS, GROUPS // SPAN, SPAN)), 2)


@triton.jit
def _choose(
    scores_ptr, peaks_ptr, best_ptr, lengths_ptr, counts_ptr, selection_ptr,
    first_row, width, slab, groups, spans, kept, selected,
    GROUP: tl.constexpr, SPAN: tl.constexpr, PEAKED: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Program (row of the slab, lane).

    Args:
        best: [lanes, slab, kept] int32, this kernel's own: the spans that may hold what is chosen.
        PEAKED, CANDIDATES: powers of two, not below the number of spans and the groups of kept spans.
    """
    lane, slab_row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row, scratch_row = first_row + slab_row, lane * slab + slab_row
    out = selection_ptr + (lane * width + row) * selected
    seen = tl.where(row < tl.load(counts_ptr + lane), tl.load(lengths_ptr + lane) + row + 1, 0).to(tl.int32)
    visible = seen // GROUP
    if visible <= kept:
        for start in range(0, selected, 1024):
            position = start + tl.arange(0, 1024)
            tl.store(out + position, tl.where(position < seen, position, -1), mask=position < selected)
    else:
        place = tl.arange(0, CANDIDATES)
        if SPAN == 1:
            bits = _bits(scores_ptr + scratch_row * groups, place, place < visible)
            group, least, most = place, 0, tl.max(bits, 0)
        else:
            best = best_ptr + scratch_row * kept
            span, least, most = _best_spans(
                peaks_ptr + scratch_row * spans, best, tl.cdiv(visible, SPAN), kept, place // SPAN, PEAKED
            )
            group = span * SPAN + place % SPAN
            bits = _bits(scores_ptr + scratch_row * groups, group, (place < kept * SPAN) & (group < visible))
        threshold, equals = _threshold(bits, kept, least, most)
        target, take = _ranks(bits, threshold, equals)
        for member in tl.static_range(GROUP):
            tl.store(out + target * GROUP + member, group * GROUP + member, mask=take)
        tail = tl.arange(0, GROUP)
        last = visible * GROUP + tail
        room = kept * GROUP + tail < selected
        tl.store(out + kept * GROUP + tail, tl.where(last < seen, last, -1), mask=room)


@triton.jit
def _best_spans(peaks_ptr, best_ptr, spans, kept, wanted, PEAKED: tl.constexpr):
    """The wanted ones of the best spans, in rising order, and bounds of the kept-th largest score."""
    place = tl.arange(0, PEAKED)
    bits = _bits(peaks_ptr, place, place < spans)
    least, most, span = 0, tl.max(bits, 0), wanted
    if spans > kept:
        least, equals = _threshold(bits, kept, least, most)
        target, take = _ranks(bits, least, equals)
        tl.store(best_ptr + target, place, mask=take)
        # Every warp's stores come before any warp's loads.
        tl.debug_barrier()
        span = tl.load(best_ptr + wanted, mask=wanted < kept, other=0)
    return span, least, most


@triton.jit
def _bits(scores_ptr, place, real):
    """Scores as integers of the same order, −1 where there is none; the sign bit of a zero is dropped."""
    bits = tl.load(scores_ptr + place, mask=real, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(real, bits, -1)


@triton.jit
def _threshold(bits, kept, least, most):
    """A number that `kept` bits or more reach while fewer exceed it, and how many of those equal to it are kept.

    It is looked for by halves, from the top: at least `kept` bits reach `least`, and none exceeds `most`.
    """
    stop, above, reach = most + 1, 0, 1 << 20
    while stop - least > 1:
        middle = tl.maximum(least + (stop - least) // 2, stop - reach)
        count = tl.sum((bits >= middle).to(tl.int32), 0)
        # Exactly as many as wanted: nothing closer to the kept-th is needed, and all equals are kept.
        exact, fewer = count == kept, count < kept
        above = tl.where(fewer, count, tl.where(exact, 0, above))
        reach = tl.where(fewer, tl.minimum(reach, 1 << 28) * 4, reach)
        stop = tl.where(fewer, middle, tl.where(exact, middle + 1, stop))
        least = tl.where(fewer, least, middle)
    return least, kept - above


@triton.jit
def _ranks(bits, threshold, equals):
    """Where each of the bits goes among those taken, and which are taken: above the threshold, and its first equals."""
    above, equal = (bits > threshold).to(tl.int32), (bits == threshold).to(tl.int32)
    # Two counts in one number, sixteen bits each.
    before = tl.cumsum(above + (equal << 16), 0)
    met = (before >> 16) & 0xFFFF
    take = (above > 0) | ((equal > 0) & (met <= equals))
    return (before & 0xFFFF) + tl.minimum(met, equals) - 1, take
