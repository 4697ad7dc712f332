"""Rows as the law's kernels read them: which are live, and their logits after bias, penalties, min_tokens and mask."""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sampling.tables import LawRows, PolicyTable

STOPS = tl.constexpr(17)
INFINITY = tl.constexpr(float("inf"))


class RowInputs(NamedTuple):
    """What a law's kernel reads, named as in `LawRows` and `PolicyTable`, with the strides of lanes and rows."""

    logits: Tensor
    tokens: Tensor
    length: Tensor
    live: Tensor
    slots: Tensor
    masks: Tensor
    masked: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    min_tokens: Tensor
    generated: Tensor
    stops: Tensor
    prompt_counts: Tensor
    generated_counts: Tensor
    bias: Tensor
    plain: Tensor
    logits_lane: int
    logits_row: int
    tokens_lane: int
    masks_lane: int
    masks_row: int
    width: int
    vocab: int


class Output(NamedTuple):
    """The law's rows and their strides."""

    law: Tensor
    lane: int
    row: int


def row_inputs(logits: Tensor, rows: LawRows, policy: PolicyTable) -> RowInputs:
    """Gather the operands of one call; logits [B, W, V]."""
    return RowInputs(
        **{name: getattr(rows, name) for name in ("tokens", "length", "live", "slots", "masks", "masked")},
        **vars(policy),
        logits=logits,
        logits_lane=logits.stride(0),
        logits_row=logits.stride(1),
        tokens_lane=rows.tokens.stride(0),
        masks_lane=rows.masks.stride(0),
        masks_row=rows.masks.stride(1),
        width=logits.shape[1],
        vocab=logits.shape[2],
    )


@triton.jit
def place_of(row, rows):
    """Lane and row in it of the row-th of all B × W rows, and whether its law is consulted."""
    b, w = row // rows.width, row % rows.width
    return b, w, (tl.load(rows.live + b) != 0) & (w <= tl.load(rows.length + b))


@triton.jit
def adjusted(ids, b, w, rows):
    """Logits of `ids`, float64, in row w of lane b; −inf outside and where forbidden, +inf where not a number."""
    inside, slot = ids < rows.vocab, tl.load(rows.slots + b)
    x = tl.load(rows.logits + b * rows.logits_lane + w * rows.logits_row + ids, inside, 0.0).to(tl.float64)
    if tl.load(rows.plain + slot) == 0:
        table = slot * rows.vocab + ids
        generated = tl.load(rows.generated_counts + table, inside, 0)
        for i in range(1, w + 1):
            generated += (ids == tl.load(rows.tokens + b * rows.tokens_lane + i)).to(tl.int32)
        seen = (tl.load(rows.prompt_counts + table, inside, 0) > 0) | (generated > 0)
        repetition = tl.load(rows.repetition + slot).to(tl.float64)
        x += tl.load(rows.bias + table, inside, 0.0).to(tl.float64)
        x = tl.where(seen, tl.where(x > 0, x / repetition, x * repetition), x)
        x -= tl.load(rows.frequency + slot).to(tl.float64) * generated.to(tl.float64)
        x -= tl.where(generated > 0, tl.load(rows.presence + slot).to(tl.float64), 0.0)
    if tl.load(rows.generated + slot) + w < tl.load(rows.min_tokens + slot):
        for i in range(STOPS):
            x = tl.where(ids == tl.load(rows.stops + slot * STOPS + i), -INFINITY, x)
    if tl.load(rows.masked + b) != 0:
        words = tl.load(rows.masks + b * rows.masks_lane + w * rows.masks_row + ids // 32, inside, 0)
        x = tl.where(((words >> (ids % 32)) & 1) == 1, x, -INFINITY)
    x = tl.where(x == x, x, INFINITY)
    return tl.where(inside, x, -INFINITY)


@triton.jit
def ordered(x):
    """An int32 for every float32, in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(order):
    """The float32 with this order."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
