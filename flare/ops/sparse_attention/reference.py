"""Reference of the sparse attention family: one row, one group, one head at a time."""

import torch
from torch import Tensor

from flare.ops.sparse_attention.contract import GROUP_TOKENS, IndexStream, Interval


def norm_rotary(x: Tensor, weight: Tensor, cosines: Tensor, signed_sines: Tensor, eps: float) -> Tensor:
    """See the card; cosines and signed sines [R, 1, rotary width], as the CPU's `rotary_rows` gives them."""
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight)
    half = cosines.shape[-1] // 2
    first, second = y[..., :half].clone(), y[..., half : 2 * half].clone()
    cosine, sine = cosines[..., :half], signed_sines[..., half:]
    y[..., :half], y[..., half : 2 * half] = first * cosine - second * sine, second * cosine + first * sine
    return y


def absorb_keys(raw: Tensor, stream: IndexStream, interval: Interval, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    """See the card."""
    lanes, width, index_dim = raw.shape
    intact = torch.ones(lanes, dtype=torch.bool)
    per_page = stream.pages.shape[1] // GROUP_TOKENS
    keys_by_page = stream.pages.view(len(stream.pages), per_page, index_dim)
    for lane in range(lanes):
        slot, start, count = (int(x[lane]) for x in (interval.slots, interval.lengths, interval.counts))
        ring, tags = stream.ring[slot], stream.tags[slot]
        for group in range(start // GROUP_TOKENS, (start + count) // GROUP_TOKENS):
            total = torch.zeros(index_dim, dtype=raw.dtype)
            for position in range(GROUP_TOKENS * group, GROUP_TOKENS * (group + 1)):
                if position >= start:
                    total += raw[lane, position - start]
                else:
                    total += ring[position % len(ring)]
                    intact[lane] &= tags[position % len(ring)] == position
            turn = lane * -(-width // GROUP_TOKENS) + group - start // GROUP_TOKENS
            rotary = cosines[turn : turn + 1], signed_sines[turn : turn + 1]
            closed = norm_rotary(total.view(1, 1, -1) / GROUP_TOKENS, stream.norm, *rotary, stream.eps)
            keys_by_page[int(interval.page_tables[lane, group // per_page]), group % per_page] = closed[0, 0]
        for row in range(count):
            ring[(start + row) % len(ring)] = raw[lane, row]
            tags[(start + row) % len(ring)] = start + row
    return intact


def select_positions(q: Tensor, pages: Tensor, interval: Interval, budget: int) -> Tensor:
    """See the card."""
    lanes, width, _, index_dim = q.shape
    selection = torch.full((lanes, width, budget + GROUP_TOKENS - 1), -1, dtype=torch.int32)
    per_page = pages.shape[1] // GROUP_TOKENS
    keys_by_page = pages.view(len(pages), per_page, index_dim)
    for lane in range(lanes):
        for row in range(int(interval.counts[lane])):
            seen = int(interval.lengths[lane]) + row + 1
            scores = []
            for group in range(seen // GROUP_TOKENS):
                key = keys_by_page[int(interval.page_tables[lane, group // per_page]), group % per_page]
                scores.append(float((q[lane, row] * key).sum(-1).clamp_min(0).sum()) / index_dim**0.5)
            ranked = sorted(range(len(scores)), key=lambda group: (-scores[group], group))
            chosen = sorted(ranked[: budget // GROUP_TOKENS])
            positions = [GROUP_TOKENS * group + offset for group in chosen for offset in range(GROUP_TOKENS)]
            positions += range(GROUP_TOKENS * len(scores), seen)
            selection[lane, row, : len(positions)] = torch.tensor(positions)
    return selection


def sparse_attend(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, selection: Tensor, interval: Interval, scale: float
) -> Tensor:
    """See the card."""
    y = torch.zeros(q.shape, dtype=q.dtype)
    lanes, _, query_heads, _ = q.shape
    group = query_heads // k_pages.shape[2]
    for lane in range(lanes):
        for row in range(int(interval.counts[lane])):
            places = [divmod(p, k_pages.shape[1]) for p in selection[lane, row].tolist() if p >= 0]
            if not places:
                continue
            tokens = [(int(interval.page_tables[lane, page]), offset) for page, offset in places]
            for head in range(query_heads):
                keys = torch.stack([k_pages[page, offset, head // group] for page, offset in tokens])
                values = torch.stack([v_pages[page, offset, head // group] for page, offset in tokens])
                weights = (scale * (keys * q[lane, row, head]).sum(-1)).softmax(0)
                y[lane, row, head] = (weights[:, None] * values).sum(0)
    return y


def reuse_selection(
    recorded: Tensor, recorded_positions: Tensor, source: Tensor, positions: Tensor, tail: int
) -> Tensor:
    """See the card."""
    selection = torch.full((len(source), recorded.shape[1] + tail), -1, dtype=torch.int32)
    for lane, (row, position) in enumerate(zip(source.tolist(), positions.tolist(), strict=True)):
        if not 0 <= row < len(recorded):
            continue
        anchor = int(recorded_positions[row])
        if anchor < position <= anchor + tail:
            selection[lane, : recorded.shape[1]] = recorded[row]
            later = torch.arange(anchor + 1, position + 1)
            selection[lane, recorded.shape[1] : recorded.shape[1] + len(later)] = later
    return selection


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """See the card."""
    return x / (1 + (-gate).exp())
