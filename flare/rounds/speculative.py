"""The round: draft, verify, accept, commit — one state transaction for a batch.

Shapes: B lanes, D drafts, W = D + 1 rows per lane, R = B × W, V vocabulary (V itself is the end marker).
"""

import torch
from torch import Tensor

from flare.contract.frames import Arguments
from flare.contract.manifest import ExecutionGraph
from flare.drafting.contract import Pairs, Proposal, Tail
from flare.drafting.copies import no_proposal
from flare.layers.rows import Hidden, causal_rows
from flare.ops.requests import Emission, Lanes, Offer, Outcome
from flare.ops.sampling import DraftLaw
from flare.rounds.boundaries import find_crossing, keep_crossing
from flare.rounds.model import Frame, Model
from flare.rounds.proposals import ProposalDraws
from flare.rounds.records import write_records
from flare.sampling.domains import Domain


def speculative_round(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Offer up to D drafts per lane, verify them in one pass, commit exactly the accepted prefix."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, graph.batch_capacity)
    tail = requests.tail(lanes, model.pages(arguments, lanes))
    proposal = propose(model, tail, lanes, graph.token_capacity - 1, arguments)
    offer = make_offer(model, proposal, tail, lanes, arguments)
    rows, inputs = offer.rows, offer.inputs
    verified = model.target.verify(rows)
    logits = model.logits_of(verified.output, *inputs.shape)
    laws = model.law(logits, inputs, offer.length, lanes, arguments)
    tokens, accepted = model.ops.chain_verify(
        laws, DraftLaw(proposal.probs, offer.point), inputs[:, 1:], lanes.seeds, lanes.offsets[Domain.VERIFY]
    )
    emission = requests.clip(tokens, accepted, lanes)
    crossing = find_crossing(model, rows, emission.count, arguments)
    if model.drafter is not None and model.drafter.absorbs:
        model.drafter.absorb(committed_pairs(tail, verified, emission, inputs))
    model.target.commit(rows, emission.count, crossing and crossing.boundary)
    keep_crossing(model, rows, verified, crossing)
    requests.commit(lanes, emission.count, verified, emission, Domain.PROPOSAL, Domain.VERIFY)
    model.report_logprobs(logits, tokens, emission.kept, lanes, frame.completion)
    faults = model.faults(verified.output, rows.active)
    outcome = Outcome(lanes, emission, offer.length, offer.sources, faults, crossing and crossing.chosen)
    write_records(requests, graph, frame, outcome)


def propose(model: Model, tail: Tail, lanes: Lanes, depth: int, arguments: Arguments[Tensor]) -> Proposal:
    """What the drafter says comes next; without one, tokens that only copies may replace."""
    if model.drafter is None:
        return no_proposal(tail, depth)
    return model.drafter.propose(tail, depth, ProposalDraws(model, lanes, arguments))


def make_offer(model: Model, proposal: Proposal, tail: Tail, lanes: Lanes, arguments: Arguments[Tensor]) -> Offer:
    """Let copies replace the proposal where they fit, cut it to what is valid, and lay it out as rows."""
    learned = model.drafter is not None and model.drafter.source != "copy"
    return model.ops.requests.make_offer(proposal.tokens, learned, lanes, arguments, tail.pages, model.target.vocab)


def committed_pairs(tail: Tail, verified: Hidden, emission: Emission, inputs: Tensor) -> Pairs:
    """Pairs N−1 … N+t−2: the tail's feedback with the pending token, then each consumed row with the next input."""
    lanes, width = inputs.shape
    following = verified.feedback.view(lanes, width, -1)[:, :-1]
    lengths = (tail.consumed - 1).clamp_min(0)
    rows = causal_rows(inputs, emission.count, lengths, tail.slots, tail.pages)
    return Pairs(rows, torch.cat((tail.feedback[:, None], following), 1))
