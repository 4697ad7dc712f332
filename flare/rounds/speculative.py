"""The round: draft, verify, accept, commit — one state transaction for a batch.

Shapes: B lanes, D drafts, W = D + 1 rows per lane, R = B × W, V vocabulary (V itself is the end marker).
"""

import torch
from torch import Tensor

from flare.contract.frames import Arguments
from flare.contract.manifest import ExecutionGraph
from flare.drafting.contract import Pairs, Proposal, Tail
from flare.drafting.copies import Offer, substitute_copies
from flare.layers.rows import Hidden, causal_rows
from flare.ops.sampling import DraftLaw
from flare.rounds.model import Frame, Model
from flare.rounds.proposals import ProposalDraws
from flare.rounds.records import Outcome, write_records
from flare.rounds.requests import Emission, Lanes
from flare.rounds.rows import page_tables
from flare.sampling.domains import Domain


def speculative_round(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Offer up to D drafts per lane, verify them in one pass, commit exactly the accepted prefix."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, graph.batch_capacity)
    tail = requests.tail(lanes, page_tables(arguments, lanes, model.extent))
    offer = make_offer(model, tail, lanes, graph.token_capacity - 1, arguments)
    length = valid_length(offer, requests.budget_left(lanes), lanes, arguments)
    inputs = with_marker(tail.pending, offer.tokens, length, model.target.vocab)
    rows = causal_rows(inputs, (length + 1).where(lanes.live, 0), tail.consumed, lanes.slots, tail.pages)
    verified = model.target.verify(rows)
    logits = model.logits_of(verified.output, *inputs.shape)
    laws = model.law(logits, inputs, length, lanes, arguments)
    draws = requests.draws(lanes, Domain.VERIFY)
    drafted = torch.arange(inputs.shape[1] - 1, device=length.device) < length[:, None]
    tokens, accepted = model.ops.chain_verify(
        laws, DraftLaw(offer.probs, offer.point & drafted), inputs[:, 1:], draws.seeds, draws.offsets
    )
    emission = requests.clip(tokens, accepted, lanes)
    if model.drafter is not None and model.drafter.absorbs:
        model.drafter.absorb(committed_pairs(tail, verified, emission, inputs))
    model.target.commit(rows, emission.count)
    requests.commit(lanes, emission.count, last_feedback(verified, emission), emission)
    requests.advance(lanes, Domain.PROPOSAL)
    requests.advance(lanes, Domain.VERIFY)
    model.report_logprobs(logits, tokens, emission.kept, lanes, frame.completion)
    faults = model.faults(verified.output, rows)
    write_records(requests, graph, frame, Outcome(lanes, emission, length, offer.sources, faults))


def make_offer(model: Model, tail: Tail, lanes: Lanes, depth: int, arguments: Arguments[Tensor]) -> Offer:
    """The drafter's proposal, with copies where they fit."""
    if model.drafter is None:
        return substitute_copies(Proposal(tail.pending.new_zeros((len(tail.pending), depth))), False, arguments, tail)
    proposal = model.drafter.propose(tail, depth, ProposalDraws(model, lanes, tail.pending, arguments))
    return substitute_copies(proposal, model.drafter.source != "copy", arguments, tail)


def valid_length(offer: Offer, budget_left: Tensor, lanes: Lanes, arguments: Arguments[Tensor]) -> Tensor:
    """[B] drafts c each lane really offers: what was proposed, the host's ceiling, and the budget less its own token.

    The budget was bounded by the context at admission, so it covers the context too.
    """
    ceilings = arguments.ceilings[: len(offer.count)]
    length = torch.minimum(torch.minimum(offer.count, ceilings), budget_left - 1)
    return length.clamp_min(0).where(lanes.live, 0)


def with_marker(pending: Tensor, drafts: Tensor, length: Tensor, marker: int) -> Tensor:
    """Row inputs [B, W]: the pending token, the valid drafts, then the end marker."""
    index = torch.arange(drafts.shape[1], device=drafts.device)
    return torch.cat((pending[:, None], drafts.where(index < length[:, None], marker)), 1)


def committed_pairs(tail: Tail, verified: Hidden, emission: Emission, inputs: Tensor) -> Pairs:
    """Pairs N−1 … N+t−2: the tail's feedback with the pending token, then each consumed row with the next input."""
    lanes, width = inputs.shape
    following = verified.feedback.view(lanes, width, -1)[:, :-1]
    lengths = (tail.consumed - 1).clamp_min(0)
    rows = causal_rows(inputs, emission.count, lengths, tail.slots, tail.pages)
    return Pairs(rows, torch.cat((tail.feedback[:, None], following), 1))


def last_feedback(verified: Hidden, emission: Emission) -> Tensor:
    """[B, F] feedback of row t − 1, the last consumed one (row 0 where nothing was)."""
    lanes, width = emission.tokens.shape
    feedback = verified.feedback.view(lanes, width, -1)
    last = (emission.count - 1).clamp_min(0)[:, None, None].expand(-1, 1, feedback.shape[2])
    return feedback.gather(1, last).squeeze(1)
