"""Proposal draws: a learned drafter's tokens, drawn from laws the chain will be shown.

Shapes: B lanes, D depth, V vocabulary.
"""

from functools import cached_property

import torch
from torch import Tensor

from flare.contract.frames import Arguments
from flare.ops.requests import Lanes
from flare.ops.sampling import DraftLaw, LawRows
from flare.rounds.model import Model
from flare.sampling.domains import Domain, offset, proposal_event

_START = offset(Domain.PROPOSAL, 0)


class ProposalDraws:
    """Filters a draft's logits with the request's own policy and draws from the result, step by step.

    Penalties count the committed tokens and the pending one; the drafts of this round are not added. What matters is
    that the kept law is the one drawn from.
    """

    def __init__(self, model: Model, lanes: Lanes, arguments: Arguments[Tensor]) -> None:
        self._model, self._lanes, self._arguments = model, lanes, arguments

    @property
    def _buffer(self) -> Tensor:
        assert self._model.proposals is not None, "a drafter that samples needs the proposal buffer"
        return self._model.proposals

    def laws(self, depth: int) -> Tensor:
        """See `drafting.contract.Draws`."""
        return self._buffer[:depth, : len(self._lanes.slots)].transpose(0, 1)

    @cached_property
    def _rows(self) -> LawRows:
        """One row per lane, the same for every step."""
        lanes = self._lanes
        return LawRows(
            tokens=lanes.pending[:, None],
            length=torch.zeros_like(lanes.pending),
            live=lanes.live,
            slots=lanes.slots,
            masks=self._arguments.masks[: len(lanes.slots), :1],
            masked=torch.zeros_like(lanes.live),
        )

    def sample(self, logits: Tensor, step: int) -> Tensor:
        """See `drafting.contract.Draws`."""
        law = self._buffer[step, : len(logits), None]
        self._model.ops.target_law(logits[:, None].to(law.dtype), self._rows, self._model.requests.policy, out=law)
        nothing = self._lanes.pending[:, None][:, :0]
        tokens, _ = self._model.ops.chain_verify(
            law,
            DraftLaw(None, nothing.bool()),
            nothing,
            self._lanes.seeds,
            self._lanes.offsets[Domain.PROPOSAL] + (offset(Domain.PROPOSAL, proposal_event(0, step)) - _START),
        )
        return tokens[:, 0]
