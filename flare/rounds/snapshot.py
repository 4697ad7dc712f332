"""Snapshots: the exact state of a prefix, kept in a row of its own and brought back into a slot.

A snapshot is a row of every tensor a prefix is kept in; its pages are shared, not copied, since nothing below its
length is written again. What lies at or beyond it in the last page belongs to another continuation, so that page alone
is copied when the state comes back.
"""

import torch
from torch import Tensor

from flare.contract.frames import Arguments, Scalar
from flare.contract.manifest import ExecutionGraph
from flare.layers.rows import Hidden
from flare.ops.requests import Lanes, Outcome
from flare.rounds.boundaries import keep_end
from flare.rounds.first import sample_first
from flare.rounds.model import Frame, Model
from flare.rounds.records import write_identity, write_records


def snapshot(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Keep the state of lane 0, whether its request runs or has just ended."""
    lanes = model.requests.held(frame.arguments, 1)
    keep_end(model, lanes, frame.arguments)
    write_identity(model.requests, graph, frame, lanes.named)


def restore(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Bring a prefix back into lane 0, which `init` has just reset; a whole prompt also gets its first token."""
    requests, arguments = model.requests, frame.arguments
    lanes = requests.lanes(arguments, 1)
    row = arguments.boundary_slots[:1]
    model.ops.copy_rows(model.prefix.rows, row, lanes.slots, lanes.live & (row > model.extent.null_slot))
    _copy_page(model, lanes, arguments)
    requests.consumed[lanes.slots] = _scalar(arguments, Scalar.CONSUMED).where(lanes.live, 0)
    sampled = lanes.live & (_scalar(arguments, Scalar.SAMPLE) != 0)
    output, feedback = requests.output[lanes.slots], requests.feedback[lanes.slots]
    # Without a snapshot row there is no output to sample from, and whatever lies there must not reach the law.
    output = output.where(sampled[:, None], 0)
    emission = sample_first(model, frame, lanes, output, sampled)
    nothing = torch.zeros_like(lanes.slots)
    requests.commit(lanes, nothing, Hidden(output, feedback), emission)
    faults = model.faults(output, sampled[:, None])
    write_records(requests, graph, frame, Outcome(lanes, emission, nothing, nothing[:, None][:, :0], faults))


def _copy_page(model: Model, lanes: Lanes, arguments: Arguments[Tensor]) -> None:
    taken, written = _scalar(arguments, Scalar.COPY_FROM), _scalar(arguments, Scalar.COPY_TO)
    null_page = model.extent.null_page
    copied = lanes.live & (taken != written) & (taken != null_page) & (written != null_page)
    model.ops.copy_rows(model.prefix.pages, taken, written, copied)


def _scalar(arguments: Arguments[Tensor], place: Scalar) -> Tensor:
    return arguments.scalars[place : place + 1]
