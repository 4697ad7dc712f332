"""CPU linears: oneDNN-blocked bfloat16 and float32, torch's 4-bit packs, plain float64.

Measured with 2 threads of an AVX-512 server core on all linears of SmolLM2-135M: blocked weights read 1.3 to 2 times
faster than plain ones, rows are nearly free up to eight, and four rows are *faster* than one to three. Blocked products
of two or more rows add in the same order for every row count; one row alone takes another kernel. Filling up to four
rows is therefore both the quickest and the way to bit-equal rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

from flare.ops.linear.int4 import quantise, restore
from flare.ops.linear.packed import PackedLinear
from flare.plan.packing import INT4_GROUP, check_linear_format

_BLOCKED_ROWS = 4
_ROWS_HINT = 8
_blocked_linear = torch.ops.mkldnn._linear_pointwise.default
_int4_linear = torch.ops.aten._weight_int4pack_mm_for_cpu.default


def pack_linear(weight: Tensor, linear_format: str) -> PackedLinear:
    """Pack a weight [N, K]; the weight itself is no longer needed afterwards.

    Raises:
        PlanError: the format does not exist or cannot hold this shape.
    """
    rows, columns = weight.shape
    check_linear_format(rows, columns, linear_format)
    if linear_format == "int4":
        return _pack_int4(weight)
    payload = weight.detach()
    if _takes_blocks(weight.dtype):
        payload = torch.ops.mkldnn._reorder_linear_weight(payload.contiguous(), _ROWS_HINT)
    return PackedLinear(rows, columns, "dense", payload)


def linear(x: Tensor, packed: PackedLinear, *, out: Tensor | None = None) -> Tensor:
    """See the card."""
    if packed.scales is not None:
        y = _int4_linear(x.contiguous(), packed.payload, INT4_GROUP, packed.scales)
    elif packed.payload.is_mkldnn:
        y = _linear_blocked(x, packed.payload)
    else:
        y = functional.linear(x, packed.payload)
    return y if out is None else out.copy_(y)


def packed_bytes(packed: PackedLinear) -> int:
    """Bytes a packed weight really holds."""
    payload = packed.payload
    held = torch.ops.mkldnn._nbytes(payload) if payload.is_mkldnn else payload.untyped_storage().nbytes()
    return held if packed.scales is None else held + packed.scales.untyped_storage().nbytes()


def _linear_blocked(x: Tensor, payload: Tensor) -> Tensor:
    rows = x.shape[0]
    if rows >= _BLOCKED_ROWS:
        return _blocked_linear(x, payload, None, "none", [], "")
    filled = torch.constant_pad_nd(x, (0, 0, 0, _BLOCKED_ROWS - rows))
    return _blocked_linear(filled, payload, None, "none", [], "")[:rows]


def _pack_int4(weight: Tensor) -> PackedLinear:
    rows, columns = weight.shape
    grid = quantise(weight.detach())
    if weight.dtype == torch.float64:
        return PackedLinear(rows, columns, "int4", restore(grid))
    payload = torch.ops.aten._convert_weight_to_int4pack_for_cpu(grid.codes, 1)
    midpoint = grid.minimum + 8 * grid.scale  # torch's kernel reads codes as −8..7
    scales = torch.stack((grid.scale, midpoint), dim=-1).transpose(0, 1).to(weight.dtype).contiguous()
    return PackedLinear(rows, columns, "int4", payload, scales)


def _takes_blocks(dtype: torch.dtype) -> bool:
    """Whether this build and processor have blocked products of a dtype."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
