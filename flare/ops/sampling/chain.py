"""Card of `chain_verify`: keep the longest accepted draft prefix and draw the token that follows it.

    axes     B lanes, D drafts (0 allowed), V vocabulary
    inputs   p [B, D + 1, V + 1] float32 or float64, rows sum to 1, column V is 0
             law: DraftLaw, what the drafts were drawn from
             drafts [B, D] int64 in 0..V; V is the end marker, from the lane's valid length on
             seed [B] int64, offset [B] int64: the lane's verify stream, subsequence 0
    outputs  tokens [B, D + 1] int64: accepted drafts, the token that follows, then -1
             accepted [B] int64 in 0..D: length of the accepted prefix

Draft i is accepted when u_i q_i(d_i) < p_i(d_i). The final token comes from max(p - q, 0) at the first rejection, or
from p_D when all D were accepted, by inverse CDF over ascending ids. Draws of a lane: offset + i for draft i, the final
one at offset + D + 1 after a rejection and offset + D otherwise (FlashInfer redraws D - i numbers for a statistic).

The end marker has p = q = 0: it cannot be accepted and its residual is exactly p, so after c accepted drafts the token
is drawn from p_c. Guard: where nothing is left to draw from (a draw of exactly 1 with p = q, or a broken p), the token
is the drafted one, or argmax p where no draft is. The emitted slot never holds -1 or the marker.

Source: Leviathan et al. 2023, algorithm 1; draw order of FlashInfer 0.7.4 `chain_speculative_sampling`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.ops.sampling.philox import uniform


@dataclass(frozen=True)
class DraftLaw:
    """What each draft was drawn from.

    Attributes:
        q: [B, D, V + 1], dtype of p, or None where no lane has a learned draft. A row is read only where the draft is
            neither the marker nor a point mass.
        point: [B, D] bool; the draft is certain (a copy): its law is the point mass on it. False at markers.
    """

    q: Tensor | None
    point: Tensor

    def row(self, b: int, i: int, draft: int, like: Tensor) -> Tensor:
        """The dense law [V + 1] of one draft, in the shape and dtype of a row of p."""
        if draft == like.numel() - 1:
            return torch.zeros_like(like)
        if bool(self.point[b, i]):
            return torch.nn.functional.one_hot(torch.tensor(draft), like.numel()).to(like.dtype)
        if self.q is None:
            raise ValueError(f"draft {i} of lane {b} is neither a point mass nor the marker, and there is no q")
        return self.q[b, i]


def reference(p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Verify lane by lane, draft by draft, with scalars; see the card."""
    lanes, depth = drafts.shape
    tokens = torch.full((lanes, depth + 1), -1)
    accepted = torch.zeros(lanes, dtype=torch.int64)
    for b in range(lanes):
        taken = 0
        while taken < depth:
            draft = int(drafts[b, taken])
            q_row = law.row(b, taken, draft, p[b, taken])
            if not uniform(seed[b], offset[b] + taken).to(p.dtype) * q_row[draft] < p[b, taken, draft]:
                break
            tokens[b, taken] = draft
            taken += 1
        accepted[b] = taken
        weights, last = p[b, taken], depth
        if taken < depth:
            weights, last = p[b, taken] - law.row(b, taken, int(drafts[b, taken]), p[b, taken]), depth + 1
        drawn = _inverse_cdf(weights[:-1].double(), uniform(seed[b], offset[b] + last).double())
        if drawn < 0:
            certain = taken < depth and int(drafts[b, taken]) < p.shape[-1] - 1
            drawn = int(drafts[b, taken]) if certain else int(p[b, taken, :-1].argmax())
        tokens[b, taken] = drawn
    return tokens, accepted


def _inverse_cdf(weights: Tensor, u: Tensor) -> int:
    """First id whose inclusive prefix sum exceeds u times the sum, else the last with mass, else -1."""
    weights = torch.where(weights > 0, weights, 0.0)
    prefix = weights.cumsum(0)
    chosen = -1
    for token in range(weights.numel()):
        if weights[token] > 0:
            chosen = token
            if prefix[token] > u * prefix[-1]:
                break
    return chosen
