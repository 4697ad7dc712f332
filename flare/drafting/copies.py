"""Copies: drafts taken from an anchored continuation the host found, where it still fits.

Shapes: B lanes, D depth, C = 14 tokens of a continuation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.contract.frames import COPY_TOKENS, Arguments, Source
from flare.contract.manifest import DraftSource
from flare.drafting.contract import Draws, Pairs, Proposal, Tail
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations


class Copies:
    """The drafter of a recipe without a learned one: it proposes nothing itself, copies fill the round."""

    class Config(BaseModel):
        """`recipe.drafter` of such a recipe."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        max_depth: int = Field(ge=1, le=7, description="Most copied tokens one round may offer.")

    source: DraftSource = "copy"
    absorbs: bool = False

    def __init__(self, config: Config, target: Target) -> None:  # noqa: ARG002  copies know nothing of the model
        self.max_depth = config.max_depth

    def declare(self) -> Declarations:
        return Declarations()

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        return checkpoint.read

    def bind(self, storage: Storage, ops: Operators, target: Target) -> None:
        """Nothing was declared, so there is nothing to take."""

    def absorb(self, pairs: Pairs) -> None:
        """Copies keep no history on the device."""

    def propose(self, tail: Tail, depth: int, draws: Draws) -> Proposal:  # noqa: ARG002  nothing is drawn
        return Proposal(tail.pending.new_zeros((tail.pending.shape[0], depth)))


@dataclass(frozen=True)
class Offer:
    """A proposal after copies took their places.

    Attributes:
        tokens: [B, D] int64 valid ids; probs: laws of the learned drafts, or None.
        point: [B, D] bool, drafts whose law is a point mass (every copy).
        sources: [B, D] int64 `Source`.
        count: [B] int64 drafts on offer, a prefix of D.
    """

    tokens: Tensor
    probs: Tensor | None
    point: Tensor
    sources: Tensor
    count: Tensor


def substitute_copies(proposal: Proposal, learned: bool, arguments: Arguments[Tensor], tail: Tail) -> Offer:
    """Let each lane's continuation replace the head of its proposal as far as it still fits.

    The continuation holds the tokens from absolute position A, and the token before A. It fits where it agrees with
    everything committed since A and with the pending token; what remains of it is offered. A stale one offers nothing.

    Args:
        learned: whether the proposal's own tokens are drafts (False: only copies can be offered).
    """
    lanes, depth = proposal.tokens.shape
    if depth == 0:
        nothing = torch.zeros_like(tail.consumed)
        return Offer(proposal.tokens, proposal.probs, proposal.tokens.bool(), proposal.tokens, nothing)
    copied, fresh = _remaining_copy(arguments, tail, lanes, depth)
    index = torch.arange(depth, device=fresh.device)
    point = index < fresh[:, None]
    source = arguments.copy_source[:lanes, None].expand(-1, depth)
    # Learned drafts after a copy were drawn after other tokens where the copy differs: nobody would accept them.
    follows = ((copied == proposal.tokens) | ~point).all(1)
    return Offer(
        tokens=torch.where(point, copied, proposal.tokens),
        probs=proposal.probs,
        point=point,
        sources=torch.where(point, source, int(Source.LEARNED)),
        count=fresh.where(~follows, depth) if learned else fresh,
    )


def _remaining_copy(arguments: Arguments[Tensor], tail: Tail, lanes: int, depth: int) -> tuple[Tensor, Tensor]:
    """The copied drafts [B, D] and how many of them are real [B]."""
    start, length = arguments.copy_position[:lanes], arguments.copy_length[:lanes]
    tokens = arguments.copy_tokens[:lanes]
    known = tail.consumed + 1 - start  # continuation tokens already committed or pending
    offset = torch.arange(COPY_TOKENS, device=tokens.device)
    window = tail.recent.shape[1]
    committed = tail.recent.gather(1, (start[:, None] + offset) % window)
    agrees = ((tokens == committed) | (offset >= known[:, None])).all(1)
    before = tail.recent.gather(1, (start[:, None] - 1) % window).squeeze(1)
    fits = agrees & (before == arguments.copy_before[:lanes]) & (known >= 0) & (known < length) & tail.live
    fresh = torch.where(fits, (length - known).clamp(max=depth), 0)
    place = (known.clamp_min(0)[:, None] + torch.arange(depth, device=tokens.device)).clamp(max=COPY_TOKENS - 1)
    return tokens.gather(1, place), fresh
