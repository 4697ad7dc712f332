"""Reference of `write_pages` and `paged_attention`: one row, one head at a time."""

import torch
from torch import Tensor


def write_pages(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, index: Tensor) -> None:
    """See the card."""
    for row, token in enumerate(index.tolist()):
        page, offset = divmod(token, k_pages.shape[1])
        k_pages[page, offset], v_pages[page, offset] = k[row], v[row]


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_tables: Tensor, lengths: Tensor, counts: Tensor, scale: float
) -> Tensor:
    """See the card."""
    lanes, _, query_heads, _ = q.shape
    group = query_heads // k_pages.shape[2]
    y = torch.zeros(q.shape, dtype=q.dtype)
    for lane in range(lanes):
        for row in range(int(counts[lane])):
            seen = int(lengths[lane]) + row + 1
            pages = page_tables[lane, : -(-seen // k_pages.shape[1])]
            keys, values = k_pages[pages].flatten(0, 1), v_pages[pages].flatten(0, 1)
            for head in range(query_heads):
                scores = scale * (keys[:seen, head // group] * q[lane, row, head]).sum(-1)
                y[lane, row, head] = (scores.softmax(0)[:, None] * values[:seen, head // group]).sum(0)
    return y
