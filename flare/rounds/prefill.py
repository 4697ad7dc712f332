"""Prompt chunks: prefill samples the first token after the last chunk, resume only moves the state on.

A scored chunk also says how likely the prompt's own tokens were.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.contract.frames import Scalar
from flare.contract.manifest import ExecutionGraph
from flare.drafting.contract import Pairs, Tail
from flare.layers.rows import Hidden, Rows, causal_rows
from flare.ops.requests import Emission, Lanes, Outcome
from flare.rounds.boundaries import keep_end
from flare.rounds.first import sample_first, sample_nothing
from flare.rounds.model import Frame, Model, last_rows
from flare.rounds.records import write_records
from flare.rounds.rows import chunk_rows


@dataclass(frozen=True)
class Chunk:
    """A chunk of the one lane's prompt that target and drafter have consumed.

    Attributes:
        hidden: of all rows; last: [1, H] output of the last one.
    """

    lanes: Lanes
    rows: Rows
    hidden: Hidden
    last: Tensor


def prefill(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume a prompt's last chunk and sample the first token from the law after it."""
    chunk = _consume(model, graph, frame)
    _finish(model, graph, frame, chunk, sample_first(model, frame, chunk.lanes, chunk.last, chunk.lanes.live))


def resume(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume a chunk without sampling; the pending token, if any, came from the host with `init`."""
    chunk = _consume(model, graph, frame)
    _finish(model, graph, frame, chunk, sample_nothing(chunk.lanes))


def scored_prefill(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Consume a chunk, report the log-probability of the token after each row, and sample where the prompt ends."""
    chunk = _consume(model, graph, frame)
    _score(model, frame, chunk)
    sampled = frame.arguments.scalars[Scalar.SAMPLE : Scalar.SAMPLE + 1] != 0
    _finish(model, graph, frame, chunk, sample_first(model, frame, chunk.lanes, chunk.last, sampled))


def _consume(model: Model, graph: ExecutionGraph, frame: Frame) -> Chunk:
    """Run the chunk through the target and, in a drafting core, feed the drafter its committed pairs."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, 1)
    tail = requests.tail(lanes, model.pages(arguments, lanes))
    rows = chunk_rows(graph.token_capacity, tail.consumed, lanes, arguments, tail.pages)
    hidden = model.target.prefill(rows)
    if model.drafter is not None and model.drafter.absorbs and graph.speculation_enabled is not False:
        model.drafter.absorb(_chunk_pairs(rows, hidden, tail))
    return Chunk(lanes, rows, hidden, hidden.output[last_rows(rows)])


def _finish(model: Model, graph: ExecutionGraph, frame: Frame, chunk: Chunk, emission: Emission) -> None:
    """Move the tail over the chunk, keep the state behind it where a snapshot row is named, write the record."""
    model.requests.commit(chunk.lanes, chunk.rows.counts, chunk.hidden, emission)
    keep_end(model, chunk.lanes, frame.arguments)
    faults = model.faults(chunk.hidden.output, chunk.rows.active)
    nothing = torch.zeros_like(chunk.rows.counts)
    outcome = Outcome(chunk.lanes, emission, nothing, nothing[:, None][:, :0], faults)
    write_records(model.requests, graph, frame, outcome)


def _score(model: Model, frame: Frame, chunk: Chunk) -> None:
    """Score the chunk in blocks of as many rows as the logits buffer holds."""
    tokens, completion, rows = frame.arguments.tokens, frame.completion, chunk.rows
    capacity, most = rows.tokens.shape[1], len(model.logits)
    index = torch.arange(1, capacity + 1, device=tokens.device).clamp(max=len(tokens) - 1)
    following = tokens[index][None].clamp(0, model.target.vocab - 1)
    only = torch.zeros_like(chunk.lanes.slots)
    alternatives = torch.full_like(only, min(model.extent.logprobs, model.target.vocab))
    wanted = alternatives.where(chunk.lanes.live, -1)
    for start in range(0, capacity, most):
        block = slice(start, min(start + most, capacity))
        logits = model.logits_of(chunk.hidden.output[block], 1, block.stop - start)
        model.ops.report_logprobs(
            logits,
            following[:, block],
            rows.active[:, block],
            wanted,
            only,
            completion.prompt_logprobs[None, block],
            completion.prompt_logprob_ids[None, block],
        )


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
