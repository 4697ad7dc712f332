"""Chain verification in two Triton launches: accept tests and the residual's mass by tiles, then one token per lane.

Contract: the card in `chain.py`. A lane is computed from its own rows in a fixed order, so its result does not depend
on lane or batch. Every program of a lane repeats the D accept tests, which read 2 D numbers. Sums are float64.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sampling.chain import DraftLaw
from flare.ops.sampling.cuda_philox import uniform

_TILE = 4096


class ChainInputs(NamedTuple):
    """Operands of one call; `q` is `p` where the law has none."""

    p: Tensor
    q: Tensor
    point: Tensor
    drafts: Tensor
    seed: Tensor
    offset: Tensor
    p_lane: int
    p_row: int
    q_lane: int
    q_row: int
    point_lane: int
    drafts_lane: int
    vocab: int


def chain_verify(p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted drafts and the token that follows, [B, D + 1] int64 padded with -1; accepted [B] int64; see the card.

    A draft that is neither a point mass nor the marker while the law has no q is never accepted, and the token in its
    place is drawn from p: the emitted law stays p.
    """
    (lanes, depth), inputs = drafts.shape, chain_inputs(p, law, drafts, seed, offset)
    tiles = triton.cdiv(inputs.vocab, _TILE)
    tokens, accepted = drafts.new_empty(lanes, depth + 1), drafts.new_empty(lanes)
    masses = torch.empty(lanes, tiles, dtype=torch.float64, device=p.device)
    sizes = {"DEPTH": depth, "LEARNED": law.q is not None, "TILE": _TILE}
    _accept[(tiles, lanes)](inputs, accepted, masses, DEPTHS=triton.next_power_of_2(depth), num_warps=8, **sizes)
    _draw[(lanes,)](inputs, accepted, masses, tokens, tiles, TILES=triton.next_power_of_2(tiles), num_warps=8, **sizes)
    return tokens, accepted


def chain_inputs(p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor) -> ChainInputs:
    """Gather the operands of one call."""
    q = p if law.q is None else law.q
    point, drafts = (x if x.stride(1) == 1 else x.contiguous() for x in (law.point, drafts))
    return ChainInputs(
        p=p,
        q=q,
        point=point,
        drafts=drafts,
        seed=seed.contiguous(),
        offset=offset.contiguous(),
        p_lane=p.stride(0),
        p_row=p.stride(1),
        q_lane=q.stride(0),
        q_row=q.stride(1),
        point_lane=point.stride(0),
        drafts_lane=drafts.stride(0),
        vocab=p.shape[-1] - 1,
    )


@triton.jit
def _accept(
    chain, accepted_ptr, masses_ptr,
    DEPTHS: tl.constexpr, DEPTH: tl.constexpr, LEARNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Accept the drafts of one lane; mass of one tile of what its next token is drawn from."""
    tile, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    taken = b * 0
    if DEPTH > 0:
        i = tl.arange(0, DEPTHS)
        real = i < DEPTH
        draft, q = tl.load(chain.drafts + b * chain.drafts_lane + i, real, 0), tl.zeros((DEPTHS,), tl.float32)
        point, known = tl.load(chain.point + b * chain.point_lane + i, real, 0) != 0, draft < chain.vocab
        if LEARNED:
            q = tl.load(chain.q + b * chain.q_lane + i * chain.q_row + draft, real & known, 0.0)
        else:
            known = known & point
        q = tl.where(point, 1.0, q)
        p = tl.load(chain.p + b * chain.p_lane + i * chain.p_row + draft, real & known, 0.0)
        passed = known & (uniform(tl.load(chain.seed + b), tl.load(chain.offset + b) + i) * q < p)
        taken += tl.min(tl.where(passed | (i >= DEPTH), DEPTH, i), 0)
    if tile == 0:
        tl.store(accepted_ptr + b, taken)
    weights = _residual(chain, b, taken, tile * TILE + tl.arange(0, TILE), DEPTH, LEARNED)
    tl.store(masses_ptr + b * tl.num_programs(0) + tile, tl.sum(weights, 0))


@triton.jit
def _draw(
    chain, accepted_ptr, masses_ptr, tokens_ptr, tiles,
    TILES: tl.constexpr, DEPTH: tl.constexpr, LEARNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Inverse CDF over ascending ids: first the tile, then the token in it; then write the lane's tokens."""
    b = tl.program_id(0).to(tl.int64)
    taken = tl.load(accepted_ptr + b)
    place = DEPTH + (taken < DEPTH).to(tl.int64)
    u = uniform(tl.load(chain.seed + b), tl.load(chain.offset + b) + place).to(tl.float64)
    tile = tl.arange(0, TILES)
    masses = tl.load(masses_ptr + b * tiles + tile, tile < tiles, 0.0)
    prefix = tl.cumsum(masses, 0)
    aim = u * tl.max(prefix, 0)
    chosen = tl.minimum(tl.sum((prefix <= aim).to(tl.int32), 0), tl.max(tl.where(masses > 0, tile, 0), 0))
    ids = chosen * TILE + tl.arange(0, TILE)
    weights = _residual(chain, b, taken, ids, DEPTH, LEARNED)
    within = tl.sum(tl.where(tile < chosen, masses, 0.0), 0) + tl.cumsum(weights, 0)
    reached = tl.min(tl.where((within > aim) & (weights > 0), ids, chain.vocab), 0)
    last = tl.max(tl.where(weights > 0, ids, -1), 0)
    token = tl.where(reached < chain.vocab, reached, last).to(tl.int64)
    if token < 0:
        token = certain_token(chain, b, taken, DEPTH, TILE)
    for i in tl.static_range(DEPTH + 1):
        value = tl.where(taken == i, token, -1)
        if i < DEPTH:
            value = tl.where(taken > i, tl.load(chain.drafts + b * chain.drafts_lane + i), value)
        tl.store(tokens_ptr + b * (DEPTH + 1) + i, value)


@triton.jit
def _residual(chain, b, taken, ids, DEPTH: tl.constexpr, LEARNED: tl.constexpr):
    """max(p − q, 0) of `ids`, float64, at the first rejected draft; p after all drafts and where a marker stands."""
    inside = ids < chain.vocab
    weights = tl.load(chain.p + b * chain.p_lane + taken * chain.p_row + ids, inside, 0.0)
    if taken < DEPTH:
        draft, point = (
            tl.load(chain.drafts + b * chain.drafts_lane + taken),
            tl.load(chain.point + b * chain.point_lane + taken),
        )
        if draft < chain.vocab:
            if point:
                weights -= tl.where(ids == draft, 1.0, 0.0)
            elif LEARNED:
                weights -= tl.load(chain.q + b * chain.q_lane + taken * chain.q_row + ids, inside, 0.0)
    return tl.where(weights > 0, weights, 0.0).to(tl.float64)


@triton.jit
def certain_token(chain, b, taken, DEPTH: tl.constexpr, TILE: tl.constexpr):
    """Where no mass is left: the draft, whose acceptance is the exact limit, or argmax p without one."""
    token, best = taken * 0, -float("inf")
    if taken < DEPTH:
        token = tl.load(chain.drafts + b * chain.drafts_lane + taken)
    if (taken >= DEPTH) | (token >= chain.vocab):
        token = taken * 0
        for start in range(0, chain.vocab, TILE):
            ids = start + tl.arange(0, TILE)
            inside = ids < chain.vocab
            p = tl.load(chain.p + b * chain.p_lane + taken * chain.p_row + ids, inside, -float("inf"))
            p = tl.where(p == p, p, -float("inf"))
            highest = tl.max(p, 0)
            if highest > best:
                token = tl.min(tl.where(p == highest, ids, chain.vocab), 0).to(tl.int64)
                best = highest
    return token
