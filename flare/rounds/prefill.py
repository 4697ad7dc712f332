"""Prompt chunks: prefill samples the first token after the last chunk, resume only moves the state on."""

import torch

from flare.contract.frames import Terminal
from flare.contract.manifest import ExecutionGraph
from flare.drafting.contract import Pairs, Tail
from flare.layers.rows import Hidden, Rows, causal_rows
from flare.ops.sampling import DraftLaw
from flare.rounds.model import Frame, Model, last_rows
from flare.rounds.records import Outcome, write_records
from flare.rounds.requests import Emission
from flare.rounds.rows import chunk_rows, page_tables
from flare.sampling.domains import Domain


def prefill(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume a prompt's last chunk and sample the first token from the law after it."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, 1)
    tail = requests.tail(lanes, page_tables(arguments, lanes, model.extent))
    rows = chunk_rows(graph.token_capacity, tail.consumed, lanes, arguments, model.extent)
    hidden = _consume(model, graph, rows, tail)
    last = last_rows(rows)
    logits = model.logits_of(hidden.output[last], 1, 1)
    inputs, nothing = rows.tokens[:, :1], rows.counts.new_zeros(1)
    laws = model.law(logits, inputs, nothing, lanes, arguments)
    draws = requests.draws(lanes, Domain.ORDINARY)
    tokens, accepted = model.ops.chain_verify(
        laws, DraftLaw(None, inputs[:, 1:].bool()), inputs[:, 1:], draws.seeds, draws.offsets
    )
    emission = requests.clip(tokens, accepted, lanes)
    requests.commit(lanes, rows.counts, hidden.feedback[last], emission)
    requests.advance(lanes, Domain.ORDINARY)
    model.report_logprobs(logits, tokens, emission.kept, lanes, frame.completion)
    write_records(
        requests, graph, frame, Outcome(lanes, emission, nothing, inputs[:, 1:], model.faults(hidden.output, rows))
    )


def resume(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume a chunk without sampling; the pending token, if any, came from the host with `init`."""
    requests = model.requests
    lanes = requests.lanes(frame.arguments, 1)
    tail = requests.tail(lanes, page_tables(frame.arguments, lanes, model.extent))
    rows = chunk_rows(graph.token_capacity, tail.consumed, lanes, frame.arguments, model.extent)
    hidden = _consume(model, graph, rows, tail)
    nothing = rows.counts.new_zeros(1)
    emission = Emission(
        tokens=rows.tokens[:, :1],
        kept=rows.active[:, :1] & False,
        count=nothing,
        terminal=torch.full_like(nothing, int(Terminal.LIVE)),
        accepted=nothing,
    )
    requests.commit(lanes, rows.counts, hidden.feedback[last_rows(rows)], emission)
    faults = model.faults(hidden.output, rows)
    write_records(requests, graph, frame, Outcome(lanes, emission, nothing, rows.tokens[:, :0], faults))


def _consume(model: Model, graph: ExecutionGraph, rows: Rows, tail: Tail) -> Hidden:
    """Run the chunk through the target and, in a drafting core, feed the drafter its committed pairs."""
    hidden = model.target.prefill(rows)
    if model.drafter is not None and model.drafter.absorbs and graph.speculation_enabled is not False:
        model.drafter.absorb(_chunk_pairs(rows, hidden, tail))
    return hidden


def _chunk_pairs(rows: Rows, hidden: Hidden, tail: Tail) -> Pairs:
    """Pairs N−1 … N+count−2 of a chunk; the first chunk begins with pair 0, since nothing precedes x[0]."""
    width = rows.tokens.shape[1]
    first_chunk = (rows.lengths == 0).long()[:, None]
    place = (torch.arange(width, device=rows.tokens.device) + first_chunk).clamp(max=width - 1)
    before = torch.cat((tail.feedback[:, None], hidden.feedback.view(1, width, -1)[:, :-1]), 1)
    return Pairs(
        rows=causal_rows(
            tokens=rows.tokens.gather(1, place),
            counts=(rows.counts - first_chunk[:, 0]).clamp_min(0),
            lengths=(rows.lengths - 1).clamp_min(0),
            slots=rows.slots,
            pages=tail.pages,
        ),
        feedback=before.gather(1, place[:, :, None].expand(-1, -1, before.shape[2])),
    )
