"""Reference of the gated delta rule: one row, one value head at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from flare.ops.gated_delta.contract import DeltaInputs, DeltaRecords
from flare.ops.short_conv import Boundary, LaneRows


@dataclass(frozen=True)
class _Step:
    """Row `row` of a lane: its update and output, and the matrix after it."""

    lane: int
    row: int
    correction: Tensor
    key: Tensor
    decay: Tensor
    output: Tensor
    state: Tensor


def verify(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, records: DeltaRecords) -> Tensor:
    """See the card."""
    output = _zeros(inputs, matrix)
    for step in _steps(inputs, matrix, lanes):
        output[step.lane, step.row] = step.output
        records.corrections[step.lane, step.row] = step.correction
        records.keys[step.lane, step.row] = step.key
        records.decays[step.lane, step.row] = step.decay
    return output


def commit(records: DeltaRecords, matrix: Tensor, lanes: LaneRows, boundary: Boundary | None = None) -> None:
    """See the card."""
    for lane, count in enumerate(lanes.counts.tolist()):
        state = _start(matrix, lanes, lane)
        for row in range(count):
            for head in range(len(state)):
                key = records.keys[lane, row, head * records.keys.shape[2] // len(state)]
                update = torch.outer(records.corrections[lane, row, head], key)
                state[head] = records.decays[lane, row, head] * state[head] + update
            if boundary is not None and int(boundary.counts[lane]) == row + 1:
                matrix[boundary.slots[lane]] = state
        if count > 0:
            matrix[lanes.slots[lane]] = state


def prefill(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows) -> Tensor:
    """See the card."""
    output = _zeros(inputs, matrix)
    for step in _steps(inputs, matrix.clone(), lanes):
        output[step.lane, step.row] = step.output
        matrix[lanes.slots[step.lane]] = step.state
    return output


def verify_columns(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, targets: Tensor) -> Tensor:
    """See the card."""
    output = _zeros(inputs, matrix)
    for step in _steps(inputs, matrix.clone(), lanes):
        output[step.lane, step.row] = step.output
        matrix[targets[step.lane, step.row]] = step.state
    return output


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float, gate: str) -> Tensor:
    """See the card."""
    wide = torch.promote_types(o.dtype, torch.float32)
    x = o.to(wide)
    normed = (x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).to(o.dtype) * weight
    opened = z.to(wide).sigmoid() * (z.to(wide) if gate == "silu" else 1)
    return (normed.to(wide) * opened).to(o.dtype)


def _steps(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows) -> Iterator[_Step]:
    """The recurrence over the active rows of every lane."""
    heads, value_dim, key_dim = matrix.shape[1:]
    for lane, count in enumerate(lanes.counts.tolist()):
        state = _start(matrix, lanes, lane)
        for row in range(count):
            flat = inputs.qkv[lane, row].to(matrix.dtype)
            key_width = (len(flat) - heads * value_dim) // 2
            queries, keys = (flat[: 2 * key_width].view(2, -1, key_dim)).unbind(0)
            values = flat[2 * key_width :].view(heads, value_dim)
            keys = keys / (keys.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            queries = queries / (queries.square().sum(-1, keepdim=True) + 1e-6).sqrt() * key_dim**-0.5
            rate = softplus(inputs.a[lane, row].to(matrix.dtype) + inputs.dt_bias.to(matrix.dtype))
            decay = (-inputs.a_log.to(matrix.dtype).exp() * rate).exp()
            beta = inputs.b[lane, row].to(matrix.dtype).sigmoid().to(inputs.b.dtype).to(matrix.dtype)
            correction, output = torch.zeros_like(values), torch.zeros_like(values)
            for head in range(heads):
                shared = head // (heads // len(keys))
                state[head] *= decay[head]
                correction[head] = beta[head] * (values[head] - state[head] @ keys[shared])
                state[head] += torch.outer(correction[head], keys[shared])
                output[head] = state[head] @ queries[shared]
            yield _Step(lane, row, correction, keys, decay, output, state)


def _start(matrix: Tensor, lanes: LaneRows, lane: int) -> Tensor:
    state = matrix[lanes.slots[lane]].clone()
    return state if lanes.lengths[lane] else torch.zeros_like(state)


def _zeros(inputs: DeltaInputs, matrix: Tensor) -> Tensor:
    return inputs.qkv.new_zeros(*inputs.qkv.shape[:2], *matrix.shape[1:3])
