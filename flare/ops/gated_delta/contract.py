"""The family's contract: DeltaInputs and DeltaRecords, and the operator set of one kind of device."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from flare.ops.short_conv import Boundary, LaneRows


@dataclass(frozen=True)
class DeltaInputs:
    """Operands of B × W rows.

    Attributes:
        qkv: [B, W, 2·Hk·Dk + Hv·Dv] after the short convolution: query heads, key heads, value heads.
        a, b: [B, W, Hv] raw projections behind decay and step size.
        a_log, dt_bias: [Hv] weights of the decay.
    """

    qkv: Tensor
    a: Tensor
    b: Tensor
    a_log: Tensor
    dt_bias: Tensor


@dataclass(frozen=True)
class DeltaRecords:
    """One rank-one update per row, in the matrix dtype; may be longer than a round in both leading axes.

    Attributes:
        corrections: [lanes, width, Hv, Dv], keys: [lanes, width, Hk, Dk] normalised, decays: [lanes, width, Hv].
    """

    corrections: Tensor
    keys: Tensor
    decays: Tensor


class ShortConv(Protocol):
    """x [B, W, C] convolved after the history of its lanes' slots → [B, W, C]; card: `ops/short_conv`."""

    def __call__(self, x: Tensor, weight: Tensor, history: Tensor, lanes: LaneRows) -> Tensor: ...


class ShiftHistory(Protocol):
    """Published rows of x [B, W, C] into history, in place; card: `ops/short_conv`."""

    def __call__(self, x: Tensor, history: Tensor, lanes: LaneRows, boundary: Boundary | None = None) -> None: ...


class VerifyRows(Protocol):
    """Candidate rows after the lanes' matrices → [B, W, Hv, Dv], with records to replay; card: the room's."""

    def __call__(self, inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, records: DeltaRecords) -> Tensor: ...


class CommitRows(Protocol):
    """Published records replayed into the lanes' matrices, in place; card: the room's."""

    def __call__(
        self, records: DeltaRecords, matrix: Tensor, lanes: LaneRows, boundary: Boundary | None = None
    ) -> None: ...


class PrefillRows(Protocol):
    """Committed rows → [B, W, Hv, Dv]; advances the lanes' matrices in place; card: the room's."""

    def __call__(self, inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows) -> Tensor: ...


class VerifyColumns(Protocol):
    """Candidate rows → [B, W, Hv, Dv], the matrix after each in slots targets [B, W]; card: the room's."""

    def __call__(self, inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, targets: Tensor) -> Tensor: ...


class GatedNorm(Protocol):
    """o, z [..., D], weight [D] → normalised o times gate(z); card: the room's."""

    def __call__(self, o: Tensor, z: Tensor, weight: Tensor, eps: float, gate: str) -> Tensor: ...


@dataclass(frozen=True)
class DeltaOperators:
    """The recurrence with the convolution before it and the norm behind it."""

    short_conv: ShortConv
    shift_history: ShiftHistory
    verify: VerifyRows
    commit: CommitRows
    prefill: PrefillRows
    verify_columns: VerifyColumns
    gated_norm: GatedNorm
