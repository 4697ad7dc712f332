"""Gated delta rule with full checkpoint columns: the plain transaction, reference of the compact one.

A request owns a ring of width + 1 matrices. The selected one is committed, verified row t writes the (t + 1)-th after
it, and a commit moves the selection: nothing is replayed, at the price of one matrix per verified row.
"""

import torch
from torch import Tensor

from flare.layers.gated_delta import GatedDelta
from flare.layers.storage import Storage
from flare.ops.gated_delta import DeltaInputs
from flare.ops.short_conv import Boundary, LaneRows
from flare.plan.declarations import SlotState, State


class GatedDeltaColumns(GatedDelta):
    """`GatedDelta` in columns form; same weights, same interface."""

    @property
    def columns(self) -> int:
        """The committed matrix and one for each row of the widest round."""
        return self.rounds.width + 1

    def _declare_matrix(self) -> tuple[State, ...]:
        return (
            SlotState(f"{self.name}.matrix", self.shape.matrix, self.wide, columns=self.columns),
            SlotState(f"{self.name}.selected", (), "int64"),
        )

    def _bind_records(self, storage: Storage) -> None:
        self.selected = storage.state[f"{self.name}.selected"]

    def _verify_rule(self, operands: DeltaInputs, lanes: LaneRows) -> Tensor:
        width = operands.qkv.shape[1]
        later = torch.arange(1, width + 1, device=lanes.slots.device)
        column = (self.selected[lanes.slots].unsqueeze(1) + later) % self.columns
        targets = lanes.slots.unsqueeze(1) * self.columns + column
        return self.delta.verify_columns(operands, self.matrix.flatten(0, 1), self._source(lanes), targets)

    def _prefill_rule(self, operands: DeltaInputs, lanes: LaneRows) -> Tensor:
        return self.delta.prefill(operands, self.matrix.flatten(0, 1), self._source(lanes))

    def _commit_rule(self, lanes: LaneRows, boundary: Boundary | None) -> None:
        selected = self.selected[lanes.slots]
        if boundary is not None:
            reached = self.matrix[lanes.slots, (selected + boundary.counts) % self.columns]
            self._write_boundary(reached, lanes, boundary)
        self.selected[lanes.slots] = (selected + lanes.counts) % self.columns

    def _write_boundary(self, reached: Tensor, lanes: LaneRows, boundary: Boundary) -> None:
        """Put the columns reached [B, Hv, Dv, Dk] first in their slots and select them there."""
        stops = (boundary.counts >= 1) & (boundary.counts <= lanes.counts) & (boundary.slots != lanes.slots)
        kept = self.matrix[boundary.slots, 0]
        self.matrix[boundary.slots, 0] = torch.where(stops.view(-1, 1, 1, 1), reached, kept)
        self.selected[boundary.slots] = self.selected[boundary.slots].masked_fill(stops, 0)

    def _source(self, lanes: LaneRows) -> LaneRows:
        """The same rows with committed columns for slots: slots and columns are one axis of the matrices."""
        return LaneRows(lanes.slots * self.columns + self.selected[lanes.slots], lanes.lengths, lanes.counts)
