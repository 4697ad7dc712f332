"""FlashInfer's chain verification: one-row calls on forked streams, from the same operands as `cuda_chain.py`.

A batched call mixes the lane into the random stream, so every lane has a call of its own, always on subsequence 0; side
streams let them run at once, also inside a capture. The kernel wants dense rows of 16-byte alignment: p and q are
copied into rows padded to a multiple of four, where a point mass is one-hot and the marker's row is zero.

Source: FlashInfer 0.7.4 `chain_speculative_sampling`; its prebuilt module is loaded, nothing is compiled.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sampling.chain import DraftLaw
from flare.ops.sampling.cuda_chain import ChainInputs, certain_token, chain_inputs

_TILE = 4096


def chain_verify_flashinfer(
    p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Accepted drafts and the token that follows, [B, D + 1] int64 padded with -1; accepted [B] int64; see the card."""
    (lanes, depth), inputs = drafts.shape, chain_inputs(p, law, drafts, seed, offset)
    padded = triton.cdiv(inputs.vocab + 1, 4) * 4
    dense_p = torch.empty(lanes, depth + 1, padded, dtype=torch.float32, device=p.device)
    dense_q = torch.empty(lanes, depth, padded, dtype=torch.float32, device=p.device)
    sizes = {"DEPTH": depth, "LEARNED": law.q is not None, "TILE": _TILE}
    grid = (triton.cdiv(padded, _TILE), depth + 1, lanes)
    _dense_operands[grid](inputs, dense_p, dense_q, padded, num_warps=8, **sizes)
    drawn, accepted = _one_row_chains(inputs, dense_p, dense_q)
    tokens = drafts.new_empty(lanes, depth + 1)
    _guard[(lanes,)](inputs, drawn, accepted, tokens, DEPTH=depth, TILE=_TILE)
    return tokens, accepted.long()


def _one_row_chains(chain: ChainInputs, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [B, D + 1] int32 and emitted drafts [B] int32 of one call per lane; the counters are zeroed first."""
    lanes, depth = q.shape[:2]
    ids = torch.empty(lanes, depth + 1, dtype=torch.int32, device=p.device)
    passing, emitted = (torch.zeros(lanes, dtype=torch.int32, device=p.device) for _ in range(2))
    # A copy of its own: the kernel checks strides even where there are no drafts; `contiguous` leaves those be.
    drafts, verify = torch.empty(lanes, depth, dtype=torch.int32, device=p.device).copy_(chain.drafts), _kernel()
    main = torch.cuda.current_stream(p.device)
    forked = main.record_event()
    for b, side in enumerate(_side_streams(p.device, lanes)):
        side.wait_event(forked)
        one = slice(b, b + 1)
        with torch.cuda.stream(side):
            verify(
                q[one], drafts[one], p[one], ids[one], passing[one], emitted[one],
                True, chain.seed[one], 0, chain.offset[one], 0,
            )  # fmt: skip
        main.wait_event(side.record_event())
    return ids, emitted


@cache
def _kernel() -> Any:
    """The raw entry of FlashInfer's sampling module, which writes into buffers of its caller."""
    from flashinfer.jit.sampling import gen_sampling_module  # pyright: ignore[reportMissingImports]

    return gen_sampling_module().build_and_load().chain_speculative_sampling


@cache
def _side_streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))


@triton.jit
def _dense_operands(
    chain, dense_p_ptr, dense_q_ptr, padded, DEPTH: tl.constexpr, LEARNED: tl.constexpr, TILE: tl.constexpr
):
    """One tile of row i of lane b: p, and q where there is a draft i."""
    i, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    ids = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = ids < chain.vocab
    p = tl.load(chain.p + b * chain.p_lane + i * chain.p_row + ids, inside, 0.0)
    tl.store(dense_p_ptr + (b * (DEPTH + 1) + i) * padded + ids, p, ids < padded)
    if i < DEPTH:
        draft, point = (
            tl.load(chain.drafts + b * chain.drafts_lane + i),
            tl.load(chain.point + b * chain.point_lane + i),
        )
        q = tl.zeros((TILE,), tl.float32)
        if draft < chain.vocab:
            if point:
                q = tl.where(ids == draft, 1.0, q)
            elif LEARNED:
                q = tl.load(chain.q + b * chain.q_lane + i * chain.q_row + ids, inside, 0.0)
        tl.store(dense_q_ptr + (b * DEPTH + i) * padded + ids, q, ids < padded)


@triton.jit
def _guard(chain, drawn_ptr, accepted_ptr, tokens_ptr, DEPTH: tl.constexpr, TILE: tl.constexpr):
    """Widen the ids of one lane; where nothing was left to draw from, emit the certain token."""
    b = tl.program_id(0).to(tl.int64)
    taken = tl.load(accepted_ptr + b).to(tl.int64)
    token = tl.load(drawn_ptr + b * (DEPTH + 1) + taken).to(tl.int64)
    if token < 0:
        token = certain_token(chain, b, taken, DEPTH, TILE)
    for i in tl.static_range(DEPTH + 1):
        value = tl.load(drawn_ptr + b * (DEPTH + 1) + i).to(tl.int64)
        tl.store(tokens_ptr + b * (DEPTH + 1) + i, tl.where(taken == i, token, value))
