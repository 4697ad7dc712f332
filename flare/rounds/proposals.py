"""Proposal draws: a learned drafter's tokens, drawn from laws the chain will be shown.

Shapes: B lanes, D depth, V vocabulary.
"""

import torch
from torch import Tensor

from flare.contract.frames import Arguments
from flare.ops.sampling import DraftLaw, LawRows
from flare.rounds.model import Model
from flare.rounds.requests import Lanes
from flare.sampling.domains import Domain, offset, proposal_event


class ProposalDraws:
    """Filters a draft's logits with the request's own policy and draws from the result, step by step.

    Penalties count the committed tokens and the pending one; the drafts of this round are not added. What matters is
    that the kept law is the one drawn from.
    """

    def __init__(self, model: Model, lanes: Lanes, tail_pending: Tensor, arguments: Arguments[Tensor]) -> None:
        self._model, self._lanes, self._pending, self._arguments = model, lanes, tail_pending, arguments
        self._seeds = model.requests.seed[lanes.slots]
        self._events = model.requests.events[lanes.slots, int(Domain.PROPOSAL)]

    @property
    def _buffer(self) -> Tensor:
        assert self._model.proposals is not None, "a drafter that samples needs the proposal buffer"
        return self._model.proposals

    def laws(self, depth: int) -> Tensor:
        """See `drafting.contract.Draws`."""
        return self._buffer[:depth, : len(self._pending)].transpose(0, 1)

    def sample(self, logits: Tensor, step: int) -> Tensor:
        """See `drafting.contract.Draws`."""
        count = len(self._pending)
        law = self._buffer[step, :count, None]
        rows = LawRows(
            tokens=self._pending[:, None],
            length=torch.zeros_like(self._pending),
            live=self._lanes.live,
            slots=self._lanes.slots,
            masks=self._arguments.masks[:count, :1],
            masked=torch.zeros_like(self._lanes.live),
        )
        self._model.ops.target_law(logits[:, None].to(law.dtype), rows, self._model.requests.policy, out=law)
        nothing = self._pending[:, None][:, :0]
        tokens, _ = self._model.ops.chain_verify(
            law,
            DraftLaw(None, nothing.bool()),
            nothing,
            self._seeds,
            offset(Domain.PROPOSAL, proposal_event(self._events, step)),
        )
        return tokens[:, 0]
