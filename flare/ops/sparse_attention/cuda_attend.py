"""CUDA attention over selected positions: pieces of a row's selection side by side, then one sum in a fixed order.

A few rows are cut into pieces of a fixed length, so that one request fills the device and a row's bits depend neither
on other rows nor on their number; the rows of a prompt chunk are many enough uncut. Weights of bfloat16 values go
through two bfloat16 products, their upper and lower halves, which keeps sixteen of their bits.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sparse_attention.contract import Interval


class _Tile(NamedTuple):
    """Positions a program reads at once, how many such reads overlap, and warps."""

    positions: int
    stages: int
    warps: int


_UNCUT_FROM_ROWS = 64
_PIECE = 64
_OF_A_PIECE = _Tile(32, 1, 4)
_OF_A_ROW = _Tile(64, 2, 4)


def sparse_attend(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, selection: Tensor, interval: Interval, scale: float
) -> Tensor:
    """See the card; pages may keep heads outermost."""
    assert k_pages.stride(3) == v_pages.stride(3) == 1, "channels of a head lie side by side"
    assert k_pages.stride() == v_pages.stride(), "keys and values are stored alike"
    q, selection = q.contiguous(), selection.contiguous()
    lanes, width, query_heads, head_dim = q.shape
    rows, selected, key_heads = lanes * width, selection.shape[2], k_pages.shape[2]
    cut = rows < _UNCUT_FROM_ROWS and selected > _PIECE
    pieces = triton.cdiv(selected, _PIECE) if cut else 1
    y = torch.empty_like(q)
    made = (rows, pieces, query_heads) if cut else (1,)
    sums = torch.empty((*made, head_dim), dtype=torch.float32, device=q.device)
    peaks, totals = (torch.empty(made, dtype=torch.float32, device=q.device) for _ in range(2))
    padded, tile = max(triton.next_power_of_2(head_dim), 16), _OF_A_PIECE if cut else _OF_A_ROW
    _attend[(pieces, key_heads, rows)](
        q, k_pages, v_pages, selection, interval.page_tables, interval.counts, y, sums, peaks, totals,
        width, selected, interval.page_tables.stride(0), k_pages.shape[1], *k_pages.stride()[:3],
        query_heads, query_heads // key_heads, head_dim, scale,
        HEADS=max(triton.next_power_of_2(query_heads // key_heads), 16), PADDED=padded, TILE=tile.positions,
        PIECE=_PIECE if cut else triton.cdiv(selected, tile.positions) * tile.positions, CUT=cut,
        num_stages=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    if cut:
        _join[(query_heads, rows)](
            sums, peaks, totals, y, pieces, query_heads, head_dim,
            PIECES=triton.next_power_of_2(pieces), PADDED=padded,
        )  # fmt: skip
    return y


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, selection_ptr, tables_ptr, counts_ptr, y_ptr, sums_ptr, peaks_ptr, totals_ptr,
    width, selected, table_stride, page_tokens, page_stride, token_stride, head_stride,
    query_heads, group_heads, head_dim, scale,
    HEADS: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Program (piece, key head, row); what an inactive row selects is read, so as not to wait, but not looked up."""
    row, key_head, piece = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0)
    lane = row // width
    active = row % width < tl.load(counts_ptr + lane)
    head, channel = tl.arange(0, HEADS), tl.arange(0, PADDED)
    in_head = channel < head_dim
    query_head = key_head * group_heads + head
    query_mask = (head < group_heads)[:, None] & in_head[None, :]
    query_place = (row * query_heads + query_head)[:, None] * head_dim + channel[None, :]
    query = tl.load(q_ptr + query_place, mask=query_mask, other=0.0)
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    summed = tl.zeros((HEADS, PADDED), tl.float32)
    kind = v_ptr.dtype.element_ty
    for start in range(0, PIECE, TILE):
        entry = piece * PIECE + start + tl.arange(0, TILE)
        position = tl.load(selection_ptr + row * selected + entry, mask=entry < selected, other=-1)
        seen = (position >= 0) & active
        page = tl.load(tables_ptr + lane * table_stride + position // page_tokens, mask=seen, other=0).to(tl.int64)
        token = page * page_stride + (position % page_tokens).to(tl.int64) * token_stride + key_head * head_stride
        place, mask = token[:, None] + channel[None, :], seen[:, None] & in_head[None, :]
        keys = tl.load(k_ptr + place, mask=mask, other=0.0)
        values = tl.load(v_ptr + place, mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # Nothing seen yet: any finite peak will do, since all weights are zero.
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        shrink, weights = tl.exp(peak - finite), tl.exp(scores - finite[:, None])
        total = total * shrink + tl.sum(weights, 1)
        upper = weights.to(kind)
        summed = summed * shrink[:, None] + tl.dot(upper, values, input_precision="ieee")
        if kind != tl.float32:
            summed += tl.dot((weights - upper.to(tl.float32)).to(kind), values)
        peak = higher
    if CUT:
        made = (row * tl.num_programs(0) + piece) * query_heads + query_head
        writes = head < group_heads
        tl.store(peaks_ptr + made, peak, mask=writes)
        tl.store(totals_ptr + made, total, mask=writes)
        tl.store(sums_ptr + made[:, None] * head_dim + channel[None, :], summed, mask=query_mask)
    else:
        y = summed / tl.where(total > 0, total, 1.0)[:, None]  # sums of a row that saw nothing are zero
        tl.store(y_ptr + query_place, y.to(y_ptr.dtype.element_ty), mask=query_mask)


@triton.jit
def _join(
    sums_ptr,
    peaks_ptr,
    totals_ptr,
    y_ptr,
    pieces,
    query_heads,
    head_dim,
    PIECES: tl.constexpr,
    PADDED: tl.constexpr,
):
    row, head = tl.program_id(1).to(tl.int64), tl.program_id(0)
    piece, channel = tl.arange(0, PIECES), tl.arange(0, PADDED)
    made = (row * pieces + piece) * query_heads + head
    peaks = tl.load(peaks_ptr + made, mask=piece < pieces, other=float("-inf"))
    totals = tl.load(totals_ptr + made, mask=piece < pieces, other=0.0)
    weights = tl.where(totals > 0, tl.exp(peaks - tl.max(tl.where(totals > 0, peaks, -3.0e38), 0)), 0.0)
    total = tl.sum(weights * totals, 0)
    mask = (piece < pieces)[:, None] & (channel < head_dim)[None, :]
    sums = tl.load(sums_ptr + made[:, None] * head_dim + channel[None, :], mask=mask, other=0.0)
    summed = tl.sum(sums * weights[:, None], 0)
    y = (summed / tl.where(total > 0, total, 1.0)).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + (row * query_heads + head) * head_dim + channel, y, mask=channel < head_dim)
