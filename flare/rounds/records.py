"""Completion records: what a round tells the host, one row per request slot."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.contract.frames import RECORD_FIELDS, Field, Flag
from flare.contract.manifest import ExecutionGraph
from flare.rounds.model import Frame
from flare.rounds.requests import Emission, Lanes, RequestTable
from flare.sampling.domains import Domain


@dataclass(frozen=True)
class Outcome:
    """A finished round.

    Attributes:
        offered: [B] int64 drafts each lane offered; sources: [B, D] int64 where they came from.
        faults: [B] bool lanes whose target output was not finite.
    """

    lanes: Lanes
    emission: Emission
    offered: Tensor
    sources: Tensor
    faults: Tensor


def write_records(requests: RequestTable, graph: ExecutionGraph, frame: Frame, outcome: Outcome) -> None:
    """Write the record of every named slot; a dead lane's says that nothing was emitted."""
    slots, emission = outcome.lanes.named, outcome.emission
    records = frame.completion.records
    events = requests.events[slots]
    values: dict[Field, Tensor | int] = {
        Field.REQUEST_ID: requests.request_id[slots],
        Field.GENERATION: requests.generation[slots],
        Field.CONSUMED: requests.consumed[slots],
        Field.GENERATED: requests.generated[slots],
        Field.TERMINAL: requests.terminal[slots],
        Field.EMITTED: emission.count,
        Field.OFFERED: outcome.offered,
        Field.ACCEPTED: emission.accepted,
        Field.SOURCES: _source_bits(outcome.sources, outcome.offered),
        Field.DRAFT_POSITION: (requests.consumed[slots] - 1).clamp_min(0),
        Field.WIDTH: max(graph.token_capacity, 1) if graph.kind in ("decode", "speculative") else 1,
        Field.GRAPH: graph.id,
        Field.FLAGS: outcome.faults * int(Flag.FAULT),
        Field.ROUND: events[:, Domain.ORDINARY] + events[:, Domain.VERIFY],
    }
    head = torch.stack([_column(values.get(field, 0), slots) for field in Field], 1)
    width = records.shape[1] - RECORD_FIELDS
    tokens = emission.tokens.where(emission.kept, -1)
    padding = tokens.new_full((tokens.shape[0], width - tokens.shape[1]), -1)
    records[slots] = torch.cat((head, tokens, padding), 1)


def write_identity(requests: RequestTable, graph: ExecutionGraph, frame: Frame, slot: Tensor) -> None:
    """The record of a graph that emits nothing and names one slot."""
    record = frame.completion.records.new_zeros(1, frame.completion.records.shape[1])
    record[:, RECORD_FIELDS:] = -1
    record[:, Field.REQUEST_ID] = requests.request_id[slot]
    record[:, Field.GENERATION] = requests.generation[slot]
    record[:, Field.GENERATED] = requests.generated[slot]
    record[:, Field.GRAPH] = graph.id
    frame.completion.records[slot] = record


def _column(value: Tensor | int, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, value)


def _source_bits(sources: Tensor, offered: Tensor) -> Tensor:
    """Two bits per offered depth."""
    index = torch.arange(sources.shape[1], device=sources.device)
    return (sources.where(index < offered[:, None], 0) << (2 * index)).sum(1)
