"""CUDA log-probabilities: two launches whose programs return at once where nobody asked.

The first keeps, by tiles, the largest logit of each group of neighbours and the sum of exponentials. The second takes
the likeliest logits one after another: the group with the largest maximum is read again, and its maximum moves on to
its next logit. Equal logits come by ascending id.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048
_GROUPS = 2048  # most group maxima of a row, for vocabularies up to 2^22
_INFINITY = tl.constexpr(float("inf"))


class Asked(NamedTuple):
    """Operands of one call and their strides."""

    logits: Tensor
    tokens: Tensor
    kept: Tensor
    wanted: Tensor
    slots: Tensor
    logits_lane: int
    logits_row: int
    vocab: int


class Scratch(NamedTuple):
    """Group maxima [R, G], and the sum of exponentials of each tile [R, T], relative to the tile's own maximum."""

    maxima: Tensor
    sums: Tensor
    groups: int
    tiles: int


def report_logprobs(
    logits: Tensor, tokens: Tensor, kept: Tensor, wanted: Tensor, slots: Tensor, values: Tensor, ids: Tensor
) -> None:
    """See the card."""
    lanes, width, vocab = logits.shape
    group = min(max(triton.next_power_of_2(triton.cdiv(vocab, _GROUPS)), 16), _TILE)
    tiles = triton.cdiv(vocab, _TILE)
    groups, rows = tiles * (_TILE // group), lanes * width
    asked = Asked(
        logits, tokens.contiguous(), kept.contiguous(), wanted, slots, logits.stride(0), logits.stride(1), vocab
    )
    scratch = Scratch(
        torch.empty(rows, groups, dtype=torch.float32, device=logits.device),
        torch.empty(rows, tiles, dtype=torch.float32, device=logits.device),
        groups,
        tiles,
    )
    _scan[(tiles, rows)](asked, scratch, width, GROUP=group, PER_TILE=_TILE // group)
    _report[(rows,)](
        asked, scratch, values, ids, values.stride(0), values.stride(1), width,
        GROUP=group, PER_TILE=_TILE // group, GROUPS=triton.next_power_of_2(groups), num_warps=8,
    )  # fmt: skip


@triton.jit
def _scan(asked, scratch: Scratch, width, GROUP: tl.constexpr, PER_TILE: tl.constexpr):
    """Group maxima of one tile of a row, and its sum of exponentials."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, w = row // width, row % width
    if (tl.load(asked.wanted + b) < 0) | (tl.load(asked.kept + row) == 0):
        return
    group = tile * PER_TILE + tl.arange(0, PER_TILE)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(asked.logits + b * asked.logits_lane + w * asked.logits_row + ids, ids < asked.vocab, -_INFINITY)
    best = tl.max(x, 1)
    tl.store(scratch.maxima + row * scratch.groups + group, best)
    highest = tl.max(best, 0)
    finite = tl.where(highest == -_INFINITY, 0.0, highest)
    tl.store(scratch.sums + row * scratch.tiles + tile, tl.sum(tl.sum(tl.exp(x - finite), 1), 0))


@triton.jit
def _report(
    asked, scratch: Scratch, values_ptr, ids_ptr, slot_stride, row_stride, width,
    GROUP: tl.constexpr, PER_TILE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Log-probability of the emitted token of one row, then of the likeliest ones."""
    row = tl.program_id(0).to(tl.int64)
    b, w = row // width, row % width
    wanted = tl.load(asked.wanted + b)
    if (wanted < 0) | (tl.load(asked.kept + row) == 0):
        return
    group = tl.arange(0, GROUPS)
    best = tl.load(scratch.maxima + row * scratch.groups + group, group < scratch.groups, -_INFINITY)
    peak, highest = tl.max(best, 0), tl.max(tl.reshape(best, (GROUPS // PER_TILE, PER_TILE)), 1)
    tile = tl.arange(0, GROUPS // PER_TILE)
    sums = tl.load(scratch.sums + row * scratch.tiles + tile, tile < scratch.tiles, 0.0)
    normaliser = peak + tl.log(tl.sum(sums * tl.exp(highest - peak), 0))

    logits = asked.logits + b * asked.logits_lane + w * asked.logits_row
    place = tl.load(asked.slots + b) * slot_stride + w * row_stride
    token = tl.load(asked.tokens + row)
    tl.store(values_ptr + place, tl.load(logits + token) - normaliser)
    tl.store(ids_ptr + place, token)
    last, last_id = peak, token * 0 - 1
    for n in range(1, wanted + 1):
        x = tl.max(best, 0)
        chosen = tl.min(tl.where(best == x, group, GROUPS), 0)
        ids = chosen * GROUP + tl.arange(0, GROUP)
        members = tl.load(logits + ids, ids < asked.vocab, -_INFINITY)
        left = (members < last) | ((members == last) & (ids > last_id))
        token = tl.min(tl.where(left & (members == x), ids, asked.vocab - 1), 0).to(tl.int64)
        tl.store(values_ptr + place + n, x - normaliser)
        tl.store(ids_ptr + place + n, token)
        left = (members < x) | ((members == x) & (ids > token))
        best = tl.where(group == chosen, tl.max(tl.where(left, members, -_INFINITY), 0), best)
        last, last_id = x, token
