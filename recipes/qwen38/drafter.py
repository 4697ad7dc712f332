"""The embedded MTP layer of Qwen3.8-Flash-Next: one decoder layer, applied to its own residual once per draft.

A pair joins the target's residual h[i] with the embedding of x[i+1] at position i; what the layer makes of it predicts
x[i+2]. Its cache holds pairs made from target truth only: drafts write theirs beyond the committed pairs, and
absorption rewrites them. Embedding and head are the target's.

Shapes: B lanes, W rows per lane, D depth, F = S · H residual.
"""

from collections.abc import Callable
from typing import cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.contract.manifest import DraftSource
from flare.drafting.contract import Draws, Pairs, Proposal, Tail
from flare.layers.hyperconnection import HyperConnection, StreamMixer
from flare.layers.moe import SparseMoe
from flare.layers.mtp_feedback import MtpFeedback
from flare.layers.rows import Rows, causal_rows
from flare.layers.sparse_attention import DraftSelection, SparseAttention, sparse_rotary
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations
from recipes.qwen38 import target as qwen38
from recipes.qwen38.parts import DecoderLayer, attention, experts, streams
from recipes.qwen38.weights import stored_weights


class Drafter:
    """Draft recursively on the multi-stream residual; absorb what the target committed."""

    class Config(BaseModel):
        """`recipe.drafter` beside `type`."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        max_depth: int = Field(ge=1, le=7, description="most drafts of one round")
        share_selection: bool = Field(description="later drafts attend to what the first one selected, and since")

    source: DraftSource = "mtp+copy"
    absorbs: bool = True

    def __init__(self, config: Config, target: Target) -> None:
        self.max_depth, self.share_selection = config.max_depth, config.share_selection
        self.model = cast(qwen38.Target, target)
        geometry, dtype, name = self.model.geometry, self.model.dtype, "mtp.layers.0"
        self.feedback = MtpFeedback("mtp", streams(geometry), dtype)
        self.attention = SparseAttention(f"{name}.self_attn", attention(geometry), dtype)
        self.layer = DecoderLayer(
            embedding=None,
            attention_streams=HyperConnection(f"{name}.attn_hyper_connection", streams(geometry), dtype),
            mixer=self.attention,
            mlp_streams=HyperConnection(f"{name}.mlp_hyper_connection", streams(geometry), dtype),
            experts=SparseMoe(f"{name}.mlp", experts(geometry, self.model.formats.mtp_experts), dtype),
        )
        self.mixer = StreamMixer("mtp.hyper_connection_mixer", streams(geometry), dtype)

    def declare(self) -> Declarations:
        return self.feedback.declare() + self.layer.declare() + self.mixer.declare()

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        return stored_weights(checkpoint, self.model.geometry, self.model.formats, drafter=True)

    def bind(self, storage: Storage, ops: Operators, target: Target) -> None:
        self.ops, self.target = ops, target
        for part in (self.feedback, self.layer, self.mixer):
            part.bind(storage, ops)

    def absorb(self, pairs: Pairs) -> None:
        """Rewrite the cache entries of the pairs from target truth; only the attention layer keeps anything."""
        rotary = sparse_rotary(self.ops, self.model.rotary, pairs.rows.positions)
        x, _ = self.layer.attention_streams.read(self._fused(pairs.rows, pairs.feedback.flatten(0, 1)))
        self.attention.prefill(x, pairs.rows, rotary)

    def propose(self, tail: Tail, depth: int, draws: Draws) -> Proposal:
        """Step j draws draft j from the pair at position N − 1 + j; step 0 also writes pair N − 1."""
        token, residual, selection = tail.pending, tail.feedback, None
        tokens = [tail.pending.new_zeros((len(token), 0))]
        first, counts = (tail.consumed - 1).clamp_min(0), tail.live.long()
        for step in range(depth):
            rows = causal_rows(token[:, None], counts, first + step, tail.slots, tail.pages)
            residual, selection = self._step(rows, self._fused(rows, residual), selection)
            token = draws.sample(self.target.head(self.mixer.mix(residual)), step)
            tokens.append(token[:, None])
        return Proposal(torch.cat(tokens, 1), draws.laws(depth) if depth else None)

    def _step(
        self, rows: Rows, residual: Tensor, selection: DraftSelection | None
    ) -> tuple[Tensor, DraftSelection | None]:
        """One draft through the layer; the selection of the first step serves the later ones where it is shared."""
        rotary = sparse_rotary(self.ops, self.model.rotary, rows.positions)
        x, injection = self.layer.attention_streams.read(residual)
        if selection is not None:
            y = self.attention.draft_again(x, rows, rotary, selection)
        else:
            y, first = self.attention.draft_first(x, rows, rotary)
            selection = first if self.share_selection else None
        return self.layer.think(self.layer.attention_streams.write(residual, y, injection)), selection

    def _fused(self, rows: Rows, feedback: Tensor) -> Tensor:
        """The draft layer's residual [R, F] of each pair."""
        return self.feedback(self.target.embed(rows.tokens.flatten()), feedback)
