"""Ordinary decoding: one token per lane, no draft state touched."""

from flare.contract.manifest import ExecutionGraph
from flare.ops.requests import Outcome
from flare.ops.sampling import DraftLaw
from flare.rounds.boundaries import find_crossing, keep_crossing
from flare.rounds.model import Frame, Model
from flare.rounds.records import write_records
from flare.sampling.domains import Domain


def decode(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume each lane's pending token and sample the next one."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, graph.batch_capacity)
    offer = model.ops.requests.make_offer(
        lanes.pending[:, None][:, :0], False, lanes, arguments, model.pages(arguments, lanes), model.target.vocab
    )
    rows, inputs = offer.rows, offer.inputs
    verified = model.target.verify(rows)
    logits = model.logits_of(verified.output, *inputs.shape)
    laws = model.law(logits, inputs, offer.length, lanes, arguments)
    tokens, accepted = model.ops.chain_verify(
        laws, DraftLaw(None, offer.point), inputs[:, 1:], lanes.seeds, lanes.offsets[Domain.ORDINARY]
    )
    emission = requests.clip(tokens, accepted, lanes)
    crossing = find_crossing(model, rows, emission.count, arguments)
    model.target.commit(rows, emission.count, crossing and crossing.boundary)
    keep_crossing(model, rows, verified, crossing)
    requests.commit(lanes, emission.count, verified, emission, Domain.ORDINARY)
    model.report_logprobs(logits, tokens, emission.kept, lanes, frame.completion)
    faults = model.faults(verified.output, rows.active)
    outcome = Outcome(lanes, emission, offer.length, offer.sources, faults, crossing and crossing.chosen)
    write_records(requests, graph, frame, outcome)
