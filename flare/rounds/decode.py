"""Ordinary decoding: one token per lane, no draft state touched."""

from flare.contract.manifest import ExecutionGraph
from flare.layers.rows import causal_rows
from flare.ops.sampling import DraftLaw
from flare.rounds.model import Frame, Model
from flare.rounds.records import Outcome, write_records
from flare.rounds.rows import page_tables
from flare.rounds.speculative import last_feedback
from flare.sampling.domains import Domain


def decode(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume each lane's pending token and sample the next one."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, graph.batch_capacity)
    tail = requests.tail(lanes, page_tables(arguments, lanes, model.extent))
    inputs, nothing = tail.pending[:, None], tail.consumed.new_zeros(tail.consumed.shape)
    rows = causal_rows(inputs, lanes.live.long(), tail.consumed, lanes.slots, tail.pages)
    verified = model.target.verify(rows)
    logits = model.logits_of(verified.output, *inputs.shape)
    laws = model.law(logits, inputs, nothing, lanes, arguments)
    draws = requests.draws(lanes, Domain.ORDINARY)
    no_drafts = inputs[:, 1:]
    tokens, accepted = model.ops.chain_verify(
        laws, DraftLaw(None, no_drafts.bool()), no_drafts, draws.seeds, draws.offsets
    )
    emission = requests.clip(tokens, accepted, lanes)
    model.target.commit(rows, emission.count)
    requests.commit(lanes, emission.count, last_feedback(verified, emission), emission)
    requests.advance(lanes, Domain.ORDINARY)
    model.report_logprobs(logits, tokens, emission.kept, lanes, frame.completion)
    faults = model.faults(verified.output, rows)
    write_records(requests, graph, frame, Outcome(lanes, emission, nothing, no_drafts, faults))
