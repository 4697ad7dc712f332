"""CPU attention: torch's flash kernel on views of consecutive pages, all rows of a key head in one block.

Two ways to add up, both over whole pages (the rest of the last one is cleared: a hidden NaN would still spread):

* float32 takes one partial softmax per page and joins them by their log-sums. With rows filled up to a multiple of 32
  every product then has one shape, so a row's bits depend on neither width, batch nor chunk: the promise of equal
  greedy tokens. Of the other way's time it takes 1.4 to 2.4 times, most at width one in a long context.
* the other dtypes take one softmax over all pages, the fastest way.

Views are made with `as_strided`: in a narrow round the calls around the kernel cost as much as the kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from flare.contract.manifest import PAGE_TOKENS
from flare.ops.attention.masks import causal_mask, paged_mask

_ROWS_AT_ONCE = 64
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class _Past:
    """What the rows of one lane see: pages [≥ pages, 64, Hk, D] from page `start` on; row 0 is at position `first`.

    Keys and values share their strides.
    """

    keys: Tensor
    values: Tensor
    start: int
    first: int

    def views(self, size: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Keys and values from page `start` on in another arrangement, without a copy."""
        skipped = self.start * self.keys.stride(0)
        keys = self.keys.as_strided(size, strides, self.keys.storage_offset() + skipped)
        return keys, self.values.as_strided(size, strides, self.values.storage_offset() + skipped)


def write_pages(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, index: Tensor) -> None:
    """See the card."""
    k_pages.view(-1, *k.shape[1:]).index_copy_(0, index, k)
    v_pages.view(-1, *v.shape[1:]).index_copy_(0, index, v)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_tables: Tensor, lengths: Tensor, counts: Tensor, scale: float
) -> Tensor:
    """See the card."""
    width, key_heads = q.shape[1], k_pages.shape[2]
    attend: Callable[[Tensor, _Past, float], Tensor] = _attend_by_page if q.dtype == torch.float32 else _attend
    active = counts.tolist()
    y = q.new_empty(q.shape) if min(active) == width else q.new_zeros(q.shape)
    for lane, (length, count) in enumerate(zip(lengths.tolist(), active, strict=True)):
        if count == 0:
            continue
        keys, values, start = _pages(k_pages, v_pages, page_tables[lane], length + count)
        for rows in _stretches(count):
            past = _Past(keys, values, start, length + rows.start)
            attended = attend(_heads_first(q, lane, rows, key_heads), past, scale)
            _heads_first(y, lane, rows, key_heads).copy_(attended)
    return y


def _stretches(count: int) -> Iterator[range]:
    """Cut many rows into stretches, so that early rows of a chunk skip the pages they cannot see."""
    for start in range(0, count, _ROWS_AT_ONCE):
        yield range(start, min(start + _ROWS_AT_ONCE, count))


def _heads_first(x: Tensor, lane: int, rows: range, key_heads: int) -> Tensor:
    """Rows of one lane of [B, W, Hq, D] as a view [Hk, rows, G, D]."""
    group = x.shape[2] // key_heads
    lane_stride, row_stride, head_stride, unit = x.stride()
    return x.as_strided(
        (key_heads, len(rows), group, x.shape[3]),
        (group * head_stride, row_stride, head_stride, unit),
        x.storage_offset() + lane * lane_stride + rows.start * row_stride,
    )


def _pages(k_pages: Tensor, v_pages: Tensor, table: Tensor, tokens: int) -> tuple[Tensor, Tensor, int]:
    """Pools that hold a lane's first `tokens` positions in consecutive pages, and the first of these.

    Consecutive pages, which the allocator prefers, are read where they lie; others are gathered. Past `tokens` the last
    page is cleared.
    """
    pages, rest = -(-tokens // PAGE_TOKENS), tokens % PAGE_TOKENS
    ids = table.numpy()[:pages].tolist()
    start = ids[0]
    if ids != list(range(start, start + pages)):
        k_pages, v_pages, start = k_pages.index_select(0, table[:pages]), v_pages.index_select(0, table[:pages]), 0
    if rest:
        k_pages[start + pages - 1, rest:].zero_()
        v_pages[start + pages - 1, rest:].zero_()
    return k_pages, v_pages, start


def _attend(q: Tensor, past: _Past, scale: float) -> Tensor:
    """Rows [Hk, rows, G, D] of one lane, one softmax over all pages."""
    heads, rows, group, dim = q.shape
    tokens = -(-(past.first + rows) // PAGE_TOKENS) * PAGE_TOKENS
    mask = causal_mask(past.first, rows, group, max(rows * group, 4), q.dtype)
    _, token_stride, head_stride, _ = past.keys.stride()
    keys, values = past.views((1, heads, tokens, dim), (0, head_stride, token_stride, 1))
    y = _flash(_fill(q, mask.shape[0]), keys, values, 0.0, False, attn_mask=mask, scale=scale)[0]
    return y[0, :, : rows * group].view(heads, rows, group, dim)


def _attend_by_page(q: Tensor, past: _Past, scale: float) -> Tensor:
    """Rows [Hk, rows, G, D] of one lane, one partial softmax per page."""
    heads, rows, group, dim = q.shape
    mask, unseen = paged_mask(past.first, rows, group, -(-rows * group // 32) * 32, q.dtype)
    pages, filled = mask.shape[0], mask.shape[2]
    page_stride, token_stride, head_stride, _ = past.keys.stride()
    keys, values = past.views((pages, heads, PAGE_TOKENS, dim), (page_stride, head_stride, token_stride, 1))
    queries = _fill(q, filled).expand(pages, -1, -1, -1)
    partial, log_sum = _flash(queries, keys, values, 0.0, False, attn_mask=mask, scale=scale)
    share = torch.softmax(log_sum + unseen, dim=0)
    y = partial.mul_(share.unsqueeze(-1)).sum(0)
    return y[:, : rows * group].view(heads, rows, group, dim)


def _fill(q: Tensor, filled: int) -> Tensor:
    """Rows of one key head side by side, [1, Hk, filled, D], zeros after the last."""
    heads, rows, group, dim = q.shape
    flat = q.reshape(1, heads, rows * group, dim)
    return flat if rows * group == filled else pad(flat, (0, 0, 0, filled - rows * group))
