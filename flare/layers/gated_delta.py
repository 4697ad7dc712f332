"""Gated delta rule with a short convolution (Gated DeltaNet): recurrent state with a compact transaction.

One live matrix per request. A verification reads it and keeps one correction, key and decay per row; the commit
replays the published prefix into it. Shapes: B lanes, W rows, R = B · W, H hidden, C convolved channels.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flare.layers.rows import RoundShape, Rows
from flare.layers.storage import Storage
from flare.ops.gated_delta import DeltaInputs, DeltaRecords
from flare.ops.operators import Operators
from flare.ops.short_conv import Boundary, LaneRows
from flare.plan.declarations import Declarations, RoundBuffer, SlotState, State, Weight


@dataclass(frozen=True)
class GatedDeltaShape:
    """Geometry of one layer.

    Attributes:
        value_heads: a multiple of `key_heads`; consecutive value heads share a key head.
        taps: of the convolution, K.
        gate: what opens the output norm, as the checkpoint's `output_gate_type` says.
    """

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm_eps: float
    gate: Literal["sigmoid", "silu"] = "sigmoid"

    @property
    def values(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """C: query, key and value heads side by side, all of them convolved."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def matrix(self) -> tuple[int, int, int]:
        """Recurrent state of one request."""
        return (self.value_heads, self.value_dim, self.key_dim)


class GatedDelta:
    """The layer in compact form: no buffer holds more than one matrix per request."""

    def __init__(self, name: str, shape: GatedDeltaShape, dtype: str, rounds: RoundShape) -> None:
        self.name, self.shape, self.dtype, self.rounds = name, shape, dtype, rounds
        self.wide = "float64" if dtype == "float64" else "float32"

    def declare(self) -> Declarations:
        shape, name, dtype = self.shape, self.name, self.dtype
        heads, values, hidden = shape.value_heads, shape.values, shape.hidden
        return Declarations(
            weights=(
                Weight(f"{name}.in_proj_qkv.weight", (shape.channels, hidden), dtype, linear=True),
                Weight(f"{name}.in_proj_z.weight", (values, hidden), dtype, linear=True),
                # A handful of outputs that steer every decay: nothing to save, and errors compound over the tokens.
                Weight(f"{name}.in_proj_a.weight", (heads, hidden), dtype, linear=True, exact=True),
                Weight(f"{name}.in_proj_b.weight", (heads, hidden), dtype, linear=True, exact=True),
                Weight(f"{name}.conv1d.weight", (shape.channels, 1, shape.taps), dtype),
                Weight(f"{name}.A_log", (heads,), dtype),
                Weight(f"{name}.dt_bias", (heads,), dtype),
                Weight(f"{name}.norm.weight", (shape.value_dim,), dtype),
                Weight(f"{name}.out_proj.weight", (hidden, values), dtype, linear=True),
            ),
            state=(
                SlotState(f"{name}.conv", (shape.taps - 1, shape.channels), dtype),
                RoundBuffer(f"{name}.record_inputs", (*self._rows, shape.channels), dtype),
                *self._declare_matrix(),
            ),
        )

    @property
    def _rows(self) -> tuple[int, int]:
        return (self.rounds.lanes, self.rounds.width)

    def _declare_matrix(self) -> tuple[State, ...]:
        shape, name = self.shape, self.name
        return (
            SlotState(f"{name}.matrix", shape.matrix, self.wide),
            RoundBuffer(f"{name}.record_corrections", (*self._rows, shape.value_heads, shape.value_dim), self.wide),
            RoundBuffer(f"{name}.record_keys", (*self._rows, shape.key_heads, shape.key_dim), self.wide),
            RoundBuffer(f"{name}.record_decays", (*self._rows, shape.value_heads), self.wide),
        )

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.linear, self.delta, name = ops.linear, ops.delta, self.name
        self.in_qkv, self.in_z, self.in_a, self.in_b, self.out = (
            storage.linears[f"{name}.{part}.weight"]
            for part in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")
        )
        self.conv = storage.weights[f"{name}.conv1d.weight"].squeeze(1)
        self.a_log, self.dt_bias = storage.weights[f"{name}.A_log"], storage.weights[f"{name}.dt_bias"]
        self.norm = storage.weights[f"{name}.norm.weight"]
        self.history, self.inputs = storage.state[f"{name}.conv"], storage.state[f"{name}.record_inputs"]
        self.matrix = storage.state[f"{name}.matrix"]
        self._bind_records(storage)

    def _bind_records(self, storage: Storage) -> None:
        self.records = DeltaRecords(
            *(storage.state[f"{self.name}.record_{part}"] for part in ("corrections", "keys", "decays"))
        )

    def prefill(self, x: Tensor, rows: Rows) -> Tensor:
        """Run active rows x [R, H] and commit them: [R, H]."""
        lanes = _active(rows)
        mixed = self._mix(x, rows)
        output = self._prefill_rule(self._operands(x, mixed, lanes), lanes)
        self.delta.shift_history(mixed, self.history, lanes)
        return self._project(x, output)

    def verify(self, x: Tensor, rows: Rows) -> Tensor:
        """Run candidate rows x [R, H] against committed state, which stays as it is: [R, H]."""
        lanes = _active(rows)
        mixed = self._mix(x, rows)
        batch, width = rows.tokens.shape
        self.inputs[:batch, :width].copy_(mixed)
        return self._project(x, self._verify_rule(self._operands(x, mixed, lanes), lanes))

    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        """Publish the first `emitted` [B] rows of the last verification; also write the state at a boundary."""
        lanes = LaneRows(rows.slots, rows.lengths, emitted)
        batch, width = rows.tokens.shape
        self.delta.shift_history(self.inputs[:batch, :width], self.history, lanes, boundary)
        self._commit_rule(lanes, boundary)

    def _verify_rule(self, operands: DeltaInputs, lanes: LaneRows) -> Tensor:
        return self.delta.verify(operands, self.matrix, lanes, self.records)

    def _prefill_rule(self, operands: DeltaInputs, lanes: LaneRows) -> Tensor:
        return self.delta.prefill(operands, self.matrix, lanes)

    def _commit_rule(self, lanes: LaneRows, boundary: Boundary | None) -> None:
        self.delta.commit(self.records, self.matrix, lanes, boundary)

    def _mix(self, x: Tensor, rows: Rows) -> Tensor:
        """The convolution's inputs [B, W, C], before activation."""
        return self.linear(x, self.in_qkv).view(*rows.tokens.shape, -1)

    def _operands(self, x: Tensor, mixed: Tensor, lanes: LaneRows) -> DeltaInputs:
        linear, rows = self.linear, mixed.shape[:2]
        return DeltaInputs(
            qkv=self.delta.short_conv(mixed, self.conv, self.history, lanes),
            a=linear(x, self.in_a).view(*rows, -1),
            b=linear(x, self.in_b).view(*rows, -1),
            a_log=self.a_log,
            dt_bias=self.dt_bias,
        )

    def _project(self, x: Tensor, output: Tensor) -> Tensor:
        """Norm, gate and output projection of o [B, W, Hv, Dv]: [R, H]."""
        gate = self.linear(x, self.in_z).view(output.shape)
        normed = self.delta.gated_norm(output, gate, self.norm, self.shape.norm_eps, self.shape.gate)
        return self.linear(normed.view(x.shape[0], -1), self.out)


def _active(rows: Rows) -> LaneRows:
    return LaneRows(rows.slots, rows.lengths, rows.counts)
