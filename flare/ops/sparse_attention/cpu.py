"""CPU sparse attention: lane by lane and row by row.

Every product has a shape that follows from the row's own position, so a row's bits depend on neither width nor batch.
"""

import torch
from torch import Tensor

from flare.ops.curves import sigmoid
from flare.ops.norm.cpu import zero_centred_norm
from flare.ops.sparse_attention.contract import GROUP_TOKENS, IndexStream, Interval, SparseOperators
from flare.ops.widening import widened


def norm_rotary(x: Tensor, weight: Tensor, cosines: Tensor, signed_sines: Tensor, eps: float) -> Tensor:
    """See the card."""
    normed = zero_centred_norm(x, weight, eps)
    turning, passing = normed.split((cosines.shape[-1], x.shape[-1] - cosines.shape[-1]), dim=-1)
    turned = turning * cosines + turning.roll(cosines.shape[-1] // 2, -1) * signed_sines
    return torch.cat((turned, passing), -1)


def absorb_keys(raw: Tensor, stream: IndexStream, interval: Interval, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    """See the card."""
    intact = torch.ones(len(raw), dtype=torch.bool)
    closable = -(-raw.shape[1] // GROUP_TOKENS)
    lanes = zip(interval.slots.tolist(), interval.lengths.tolist(), interval.counts.tolist(), strict=True)
    for lane, (slot, length, count) in enumerate(lanes):
        keys = raw[lane, :count]
        first, last = length // GROUP_TOKENS, (length + count) // GROUP_TOKENS
        if last > first:
            older = torch.arange(first * GROUP_TOKENS, length)
            held, intact[lane] = ring_keys(stream, slot, older)
            whole = torch.cat((held, keys))[: (last - first) * GROUP_TOKENS].unflatten(0, (-1, GROUP_TOKENS))
            turns = slice(lane * closable, lane * closable + last - first)
            closed = norm_rotary(_mean(whole)[:, None], stream.norm, cosines[turns], signed_sines[turns], stream.eps)
            entries = _by_group(stream.pages)
            groups = torch.arange(first, last)
            pages = interval.page_tables[lane, groups // entries.shape[1]].long()
            entries[pages, groups % entries.shape[1]] = closed[:, 0]
        _write_ring(stream, slot, length, keys)
    return intact


def ring_keys(stream: IndexStream, slot: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Raw keys [n, I] the ring holds for positions [n], and whether all of them really are of these positions."""
    entries = positions % stream.ring.shape[1]
    return stream.ring[slot, entries], (stream.tags[slot, entries] == positions).all()


def select_positions(q: Tensor, pages: Tensor, interval: Interval, budget: int) -> Tensor:
    """See the card."""
    selection = torch.full((*q.shape[:2], budget + GROUP_TOKENS - 1), -1, dtype=torch.int32)
    for lane, (length, count) in enumerate(zip(interval.lengths.tolist(), interval.counts.tolist(), strict=True)):
        keys = _lane_groups(pages, interval.page_tables[lane], (length + count) // GROUP_TOKENS if count else 0)
        for row in range(count):
            seen = length + row + 1
            groups = seen // GROUP_TOKENS
            chosen = torch.arange(groups)
            if groups > budget // GROUP_TOKENS:
                scores = group_scores(q[lane, row], keys[:groups])
                chosen = scores.sort(descending=True, stable=True).indices[: budget // GROUP_TOKENS].sort().values
            whole = (chosen[:, None] * GROUP_TOKENS + torch.arange(GROUP_TOKENS)).flatten()
            positions = torch.cat((whole, torch.arange(groups * GROUP_TOKENS, seen)))
            selection[lane, row, : len(positions)] = positions
    return selection


def group_scores(q: Tensor, keys: Tensor) -> Tensor:
    """Scores [G], wide, of groups with keys [G, I] for one row's index heads [M, I]."""
    return (widened(keys) @ widened(q).T).clamp_min(0).sum(-1) * q.shape[-1] ** -0.5


def sparse_attend(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, selection: Tensor, interval: Interval, scale: float
) -> Tensor:
    """See the card."""
    y = torch.zeros(q.shape, dtype=q.dtype)
    page_tokens, key_heads = k_pages.shape[1:3]
    for lane, count in enumerate(interval.counts.tolist()):
        for row in range(count):
            positions = selection[lane, row][selection[lane, row] >= 0].long()
            if not len(positions):
                continue
            pages, offsets = interval.page_tables[lane, positions // page_tokens].long(), positions % page_tokens
            keys, values = widened(k_pages[pages, offsets]), widened(v_pages[pages, offsets])
            heads = widened(q[lane, row]).unflatten(0, (key_heads, -1))
            weights = (heads @ keys.permute(1, 2, 0) * scale).softmax(-1)
            y[lane, row] = (weights @ values.transpose(0, 1)).flatten(0, 1)
    return y


def reuse_selection(
    recorded: Tensor, recorded_positions: Tensor, source: Tensor, positions: Tensor, tail: int
) -> Tensor:
    """See the card."""
    named = source.long().clamp(0, len(recorded) - 1)
    anchors = recorded_positions[named]
    valid = (source == named) & (positions > anchors) & (positions <= anchors + tail)
    later = anchors[:, None] + 1 + torch.arange(tail)
    seen = later <= positions[:, None]
    both = torch.cat((recorded[named], later.where(seen, -1).int()), 1)
    return both.where(valid[:, None], -1)


def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """See the card."""
    return (widened(x) * sigmoid(widened(gate))).to(x.dtype)


def _mean(groups: Tensor) -> Tensor:
    """Means [n, I] of groups [n, 4, I], added in the order of the tokens."""
    first, second, third, fourth = widened(groups).unbind(1)
    return ((first + second + third + fourth) / GROUP_TOKENS).to(groups.dtype)


def _by_group(pages: Tensor) -> Tensor:
    """Index pages [pages + 1, P, I / 4] as keys of groups [pages + 1, P / 4, I]."""
    return pages.view(len(pages), pages.shape[1] // GROUP_TOKENS, pages.shape[2] * GROUP_TOKENS)


def _lane_groups(pages: Tensor, table: Tensor, groups: int) -> Tensor:
    """Keys [groups, I] of a lane's first groups."""
    entries = _by_group(pages)
    return entries[table[: -(-groups // entries.shape[1])].long()].flatten(0, 1)[:groups]


def _write_ring(stream: IndexStream, slot: int, length: int, keys: Tensor) -> None:
    """Keep the last C of the keys [n, I] at positions length..length + n − 1."""
    kept = keys[-stream.ring.shape[1] :]
    positions = torch.arange(length + len(keys) - len(kept), length + len(keys))
    entries = positions % stream.ring.shape[1]
    stream.ring[slot, entries], stream.tags[slot, entries] = kept, positions


SPARSE = SparseOperators(
    norm_rotary=norm_rotary,
    absorb_keys=absorb_keys,
    select_positions=select_positions,
    sparse_attend=sparse_attend,
    reuse_selection=reuse_selection,
    sigmoid_gate=sigmoid_gate,
)
