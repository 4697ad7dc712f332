"""CUDA projections: one launch each for up to 32 rows; for more the norm, cuBLAS and what follows."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl
from torch import Tensor

from flare.ops.activation.cuda import silu_mul
from flare.ops.attention.cuda import check_pages
from flare.ops.linear import PackedLinear
from flare.ops.linear.cuda import FEW_ROWS, Seats, in_rows, launch_rows, linear
from flare.ops.norm.cuda import rms_norm
from flare.ops.projection import Norm, Places
from flare.ops.projection.cuda_few import gate_few, head_few

_HEAD_SEATS, _GATE_SEATS = Seats(16, 4, 5), Seats(16, 2, 9)
"""The best of those timed on an H200 for SmolLM2-135M in bfloat16."""


def project_heads(x: Tensor, norm: Norm, packed: PackedLinear, rotary: tuple[Tensor, Tensor], places: Places) -> Tensor:
    """See the card."""
    x, keys = in_rows(x), places.keys
    key_heads, dim = keys.shape[2:]
    query_heads = packed.rows // dim - 2 * key_heads
    check_pages(keys, places.values)
    query = x.new_empty((x.shape[0], query_heads, dim))
    cosines, signed_sines = rotary
    heads = {"QUERY_HEADS": query_heads, "KEY_HEADS": key_heads, "DIM": dim}
    turning = (cosines, signed_sines, places.index, query, keys, places.values)
    if x.shape[0] > FEW_ROWS:
        fused = linear(rms_norm(x, norm.weight, norm.eps), packed)
        place_heads[(x.shape[0],)](
            fused, *turning, cosines.stride(0), keys.stride(1), keys.stride(2), **heads,
            HEADS=triton.next_power_of_2(query_heads + 2 * key_heads), PAIRS=triton.next_power_of_2(dim // 2),
        )  # fmt: skip
        return query
    strides = (x.stride(0), cosines.stride(0), keys.stride(1), keys.stride(2))
    head_few[(query_heads + 2 * key_heads, triton.cdiv(dim // 2, _HEAD_SEATS.outputs // 2))](
        x, packed.payload, norm.weight, *turning, *strides, norm.eps, x.shape[0],
        **heads, **_HEAD_SEATS.constants(x.shape[0], packed),
    )  # fmt: skip
    return query


def norm_gate(x: Tensor, norm: Norm, packed: PackedLinear) -> Tensor:
    """See the card."""
    if x.shape[0] > FEW_ROWS:
        return silu_mul(linear(rms_norm(x, norm.weight, norm.eps), packed))
    x, rows, inner = in_rows(x), x.shape[0], packed.rows // 2
    y = x.new_empty((rows, inner))
    gate_few[(triton.cdiv(inner, _GATE_SEATS.outputs // 2),)](
        x, packed.payload, norm.weight, y, x.stride(0), norm.eps, rows,
        F=inner, **_GATE_SEATS.constants(rows, packed),
    )  # fmt: skip
    return y


def add_linear(residual: Tensor, x: Tensor, packed: PackedLinear) -> None:
    """See the card."""
    if x.shape[0] > FEW_ROWS:
        residual.addmm_(x, packed.payload.t())
    else:
        launch_rows(x, packed, residual, added=True)


@triton.jit
def place_heads(
    fused,
    cosines,
    signed_sines,
    index,
    query,
    keys,
    values,
    turn_row,
    token_stride,
    head_stride,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Program r turns the heads of row r and stores each where it belongs."""
    row = tl.program_id(0).to(tl.int64)
    head, pair = tl.arange(0, HEADS).to(tl.int64)[:, None], tl.arange(0, PAIRS)[None, :]
    turning = QUERY_HEADS + KEY_HEADS
    inside = (head < turning + KEY_HEADS) & (pair < DIM // 2)
    start = fused + (row * (turning + KEY_HEADS) + head) * DIM + pair
    a = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(start + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    turned = inside & (head < turning)
    cosine = tl.load(cosines + row * turn_row + pair, mask=turned, other=1.0)
    sine = tl.load(signed_sines + row * turn_row + pair + DIM // 2, mask=turned, other=0.0)
    dtype: tl.constexpr = query.dtype.element_ty
    first, second = (a * cosine - b * sine).to(dtype), (b * cosine + a * sine).to(dtype)
    place = query + (row * QUERY_HEADS + head) * DIM + pair
    tl.store(place, first, mask=inside & (head < QUERY_HEADS))
    tl.store(place + DIM // 2, second, mask=inside & (head < QUERY_HEADS))
    entry = tl.load(index + row) * token_stride + pair
    place_k = keys + entry + (head - QUERY_HEADS) * head_stride
    tl.store(place_k, first, mask=turned & (head >= QUERY_HEADS))
    tl.store(place_k + DIM // 2, second, mask=turned & (head >= QUERY_HEADS))
    place_v = values + entry + (head - turning) * head_stride
    tl.store(place_v, first, mask=inside & (head >= turning))
    tl.store(place_v + DIM // 2, second, mask=inside & (head >= turning))
