"""CUDA gated delta rule: verification, replay and prefill of all lanes and heads in one Triton launch each."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
from torch import Tensor

from flare.ops.gated_delta import cuda_kernels
from flare.ops.gated_delta.contract import DeltaInputs, DeltaOperators, DeltaRecords
from flare.ops.gated_delta.cuda_chunked import chunked_kernel, fits_chunks, prefill_chunked
from flare.ops.short_conv import Boundary, LaneRows
from flare.ops.short_conv.cuda import shift_history, short_conv

_BLOCK = 16
"""Rows of a matrix in one program: 384 programs for one lane of 48 heads, three for each processor of an H200."""
_NORM_ROWS = 8


def verify(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, records: DeltaRecords) -> Tensor:
    """See the card."""
    return _steps("verify", inputs, matrix, lanes, records=records)


def commit(records: DeltaRecords, matrix: Tensor, lanes: LaneRows, boundary: Boundary | None = None) -> None:
    """See the card."""
    _check(matrix, records)
    second = lanes if boundary is None else boundary
    cuda_kernels.replay[_grid(matrix, len(lanes.slots))](
        matrix, records.corrections, records.keys, records.decays, lanes.slots, lanes.lengths, lanes.counts,
        second.slots, second.counts, records.decays.shape[1],
        **_sizes(matrix, records.keys.shape[2]), HAS_BOUNDARY=boundary is not None,
    )  # fmt: skip


def prefill(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows) -> Tensor:
    """See the card; by chunks where fla-core is installed and the rows fill one."""
    kernel = chunked_kernel() if fits_chunks(inputs, matrix) else None
    if kernel is not None:
        return prefill_chunked(inputs, matrix, lanes, kernel)
    return _steps("prefill", inputs, matrix, lanes)


def verify_columns(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, targets: Tensor) -> Tensor:
    """See the card."""
    return _steps("columns", inputs, matrix, lanes, targets=targets.contiguous())


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float, gate: str) -> Tensor:
    """See the card."""
    o, z = o.contiguous(), z.contiguous()
    rows, width, y = o.numel() // o.shape[-1], o.shape[-1], torch.empty_like(o)
    cuda_kernels.norm_gate[(triton.cdiv(rows, _NORM_ROWS),)](
        o, z, weight, y, rows, width, eps,
        SILU=gate == "silu", PADDED=triton.next_power_of_2(width), ROWS=_NORM_ROWS,
    )  # fmt: skip
    return y


def _steps(
    form: str,
    inputs: DeltaInputs,
    matrix: Tensor,
    lanes: LaneRows,
    records: DeltaRecords | None = None,
    targets: Tensor | None = None,
) -> Tensor:
    _check(matrix, records)
    qkv, a, b = inputs.qkv.contiguous(), inputs.a.contiguous(), inputs.b.contiguous()
    lane_count, width = qkv.shape[:2]
    _, heads, value_dim, key_dim = matrix.shape
    key_heads = (qkv.shape[2] - heads * value_dim) // (2 * key_dim)
    output = qkv.new_empty(lane_count, width, heads, value_dim)
    # A form without records or targets never reads their pointers.
    kept = (matrix, matrix, matrix) if records is None else (records.corrections, records.keys, records.decays)
    cuda_kernels.steps[_grid(matrix, lane_count)](
        qkv, a, b, inputs.a_log, inputs.dt_bias, matrix, output,
        lanes.slots, lanes.lengths, lanes.counts, lanes.slots if targets is None else targets, *kept,
        width, 0 if records is None else records.decays.shape[1],
        **_sizes(matrix, key_heads), FORM=form,
    )  # fmt: skip
    return output


def _grid(matrix: Tensor, lanes: int) -> tuple[int, int, int]:
    return -(-matrix.shape[2] // _BLOCK), matrix.shape[1], lanes


def _sizes(matrix: Tensor, key_heads: int) -> dict[str, int]:
    _, heads, value_dim, key_dim = matrix.shape
    padded = 1 << (key_dim - 1).bit_length()
    return {"HK": key_heads, "HV": heads, "DK": key_dim, "DV": value_dim, "PADDED_DK": padded, "BLOCK": _BLOCK}


def _check(matrix: Tensor, records: DeltaRecords | None) -> None:
    """In-place storage must be what the kernels address: dense and float32."""
    stored = [matrix] if records is None else [matrix, records.corrections, records.keys, records.decays]
    assert all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in stored)


DELTA = DeltaOperators(
    short_conv=short_conv,
    shift_history=shift_history,
    verify=verify,
    commit=commit,
    prefill=prefill,
    verify_columns=verify_columns,
    gated_norm=gated_norm,
)
