"""CUDA attention: split over the past for the rows of a round, in one pass for the rows of a prompt chunk.

The number of splits follows from the page table's width, so a graph's grid never changes; lengths and counts decide
on the device which programs have work.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.attention.cuda_chunk import attend_chunk
from flare.ops.attention.cuda_split import TILE_ROWS, attend_splits
from flare.ops.cuda_early import early

_SPLIT_ROWS = 128
"""Most rows × query heads of a key head that take splits; more have programs enough without."""

_MOST_SPLITS = 64
_LEAST_SPLIT = 128
_BLOCK = 128
_WARPS = 4
_JOINED = 8
_TICKETS = 8192
_CHUNK_ROWS = 64


def write_pages(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, index: Tensor) -> None:
    """See the card."""
    rows, heads, dim = k.shape
    check_pages(k_pages, v_pages)
    assert k.stride(2) == v.stride(2) == 1, "heads lie in one piece"
    store_tokens[(rows, heads)](
        k, v, k_pages, v_pages, index, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        k_pages.stride(1), k_pages.stride(2), DIM=dim, BLOCK=triton.next_power_of_2(dim), num_warps=1,
    )  # fmt: skip


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_tables: Tensor, lengths: Tensor, counts: Tensor, scale: float
) -> Tensor:
    """See the card."""
    _, width, query_heads, dim = q.shape
    check_pages(k_pages, v_pages)
    assert q.stride(3) == page_tables.stride(1) == 1, "heads and table rows lie in one piece"
    group = query_heads // k_pages.shape[2]
    y = q.new_empty(q.shape)
    inputs = (q, k_pages, v_pages, page_tables, lengths, counts, y)
    strides = (*q.stride()[:3], k_pages.stride(1), k_pages.stride(2), page_tables.stride(0))
    shape = {
        "GROUP": group,
        "DIM": dim,
        "CHANNELS": max(triton.next_power_of_2(dim), 16),
        "PAGE": k_pages.shape[1],
    }
    if width * group <= _SPLIT_ROWS:
        _attend_splits(inputs, scale, strides, shape)
    else:
        grid = (triton.cdiv(width * group, _CHUNK_ROWS), k_pages.shape[2], q.shape[0])
        attend_chunk[grid](*inputs, scale, *strides, width, **shape, ROWS=_CHUNK_ROWS, STAGES=2, num_warps=4)
    return y


def split_tokens(pages: int, page_tokens: int) -> int:
    """Positions of one split for a table of so many pages: 128, or more where that made over 64 splits."""
    split = _LEAST_SPLIT
    while pages * page_tokens > split * _MOST_SPLITS:
        split *= 2
    return split


def _attend_splits(inputs: tuple[Tensor, ...], scale: float, strides: tuple[int, ...], shape: dict[str, int]) -> None:
    q, keys, tables = inputs[0], inputs[1], inputs[3]
    lanes, width = q.shape[:2]
    tiles = triton.cdiv(width * shape["GROUP"], TILE_ROWS)
    split = split_tokens(tables.shape[1], shape["PAGE"])
    splits = triton.next_power_of_2(triton.cdiv(tables.shape[1] * shape["PAGE"], split))
    units = keys.shape[2] * tiles
    assert lanes * units <= _TICKETS, "one ticket per lane, key head and tile"
    partial = q.new_empty((lanes, units, splits, TILE_ROWS, shape["CHANNELS"]), dtype=torch.float32)
    statistics = q.new_empty((2, lanes, units, splits, TILE_ROWS), dtype=torch.float32)
    attend_splits[(units, lanes, splits)](
        *inputs, partial, statistics, tickets_of(q.device), scale, *strides, tables.shape[1] * shape["PAGE"],
        WIDTH=width, **shape, SPLIT=split, BLOCK=_BLOCK, SPLITS=splits, JOINED=min(splits, _JOINED),
        num_warps=_WARPS, **early(q),
    )  # fmt: skip


def tickets_of(device: torch.device) -> Tensor:
    """The counters of the current stream, which every launch leaves at zero: kernels that share them run in order."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _tickets(device, stream)


@lru_cache
def _tickets(device: torch.device, stream: int) -> Tensor:  # noqa: ARG001  one for each stream, kept for its graphs
    return torch.zeros(_TICKETS, dtype=torch.int32, device=device)


def check_pages(k_pages: Tensor, v_pages: Tensor) -> None:
    """What the kernels take for granted about pages."""
    assert k_pages.stride() == v_pages.stride(), "keys and values are laid out alike"
    assert k_pages.stride(3) == 1, "heads lie in one piece"
    assert k_pages.stride(0) == k_pages.shape[1] * k_pages.stride(1), "pages and tokens merge into one axis"


@triton.jit
def store_tokens(
    k, v, keys, values, index, k_row, k_head, v_row, v_head, token_stride, head_stride,
    DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (r, h) copies head h of row r."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    kept = channel < DIM
    place = tl.load(index + row) * token_stride + head * head_stride + channel
    tl.store(keys + place, tl.load(k + row * k_row + head * k_head + channel, mask=kept), mask=kept)
    tl.store(values + place, tl.load(v + row * v_row + head * v_head + channel, mask=kept), mask=kept)
