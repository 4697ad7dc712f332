"""Completion records: what a round tells the host, one row per request slot."""

from torch import Tensor

from flare.contract.frames import RECORD_FIELDS, Field
from flare.contract.manifest import ExecutionGraph
from flare.ops.requests import Outcome
from flare.rounds.model import Frame
from flare.rounds.requests import RequestTable


def write_records(requests: RequestTable, graph: ExecutionGraph, frame: Frame, outcome: Outcome) -> None:
    """Write the record of every named slot; a dead lane's says that nothing was emitted."""
    width = max(graph.token_capacity, 1) if graph.kind in ("decode", "speculative") else 1
    requests.ops.write_records(requests, outcome, frame.completion.records, width, graph.id)


def write_identity(requests: RequestTable, graph: ExecutionGraph, frame: Frame, slot: Tensor) -> None:
    """The record of a graph that emits nothing and names one slot."""
    record = frame.completion.records.new_zeros(1, frame.completion.records.shape[1])
    record[:, RECORD_FIELDS:] = -1
    record[:, Field.REQUEST_ID] = requests.request_id[slot]
    record[:, Field.GENERATION] = requests.generation[slot]
    record[:, Field.CONSUMED] = requests.consumed[slot]
    record[:, Field.GENERATED] = requests.generated[slot]
    record[:, Field.GRAPH] = graph.id
    frame.completion.records[slot] = record
