"""Causal masks of the CPU attention, remembered: every layer of a round asks for the same few."""

from functools import lru_cache

import torch
from torch import Tensor

from flare.contract.manifest import PAGE_TOKENS


@lru_cache(maxsize=32)
def causal_mask(first: int, rows: int, group: int, filled: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [filled, T], T whole pages: 0 where a row may look, −inf elsewhere.

    Args:
        first: position of row 0.
        rows: rows of one lane; each appears `group` times in a row, once per query head of a key head.
        filled: rows of the result; those after rows × group repeat the last one and are never used.
    """
    pages = -(-(first + rows) // PAGE_TOKENS)
    last_seen = first + (torch.arange(filled) // group).clamp_max(rows - 1)
    hidden = torch.arange(pages * PAGE_TOKENS)[None] > last_seen[:, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


@lru_cache(maxsize=32)
def paged_mask(first: int, rows: int, group: int, filled: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same mask by page [pages, 1, filled, 64], and −inf where a row sees nothing of one [pages, 1, filled]."""
    mask = causal_mask(first, rows, group, filled, dtype)
    by_page = mask.unflatten(1, (-1, PAGE_TOKENS)).transpose(0, 1).unsqueeze(1).contiguous()
    return by_page, by_page[..., 0].contiguous()
