"""Kernels of the projections for very few rows: norm, product and what follows, one warp per few channels."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.linear.cuda_vector import normed, product, row_slices, value_slices, weight_slices


@triton.jit(do_not_specialize=["rows"])
def gate_vector(
    x,
    weight,
    norm,
    y,
    x_row,
    eps,
    rows,
    F: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
):
    """Program (r, n) gates inner channels n · BLOCK … of rows r · ROWS …"""
    channel, start = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.program_id(0) * ROWS
    inside = channel < F
    gates = weight_slices(weight, channel, inside, K, SLICE)
    ups = weight_slices(weight, channel + F, inside, K, SLICE)
    factors = value_slices(norm, True, K, SLICE)
    tl.debug_barrier()
    values = row_slices(x, x_row, start, rows, K, ROWS, SLICE)
    for index in tl.static_range(ROWS):
        row = start + index
        inputs, scale = normed(values[index], factors, eps, K)
        gate, up = product(gates, inputs) * scale, product(ups, inputs) * scale
        gated = gate * tl.sigmoid(gate) * up
        tl.store(y + row * F + channel, gated.to(y.dtype.element_ty), mask=inside & (row < rows))


@triton.jit(do_not_specialize=["rows"])
def head_vector(
    x,
    weight,
    norm,
    cosines,
    signed_sines,
    index,
    query,
    keys,
    values,
    x_row,
    turn_row,
    token_stride,
    head_stride,
    eps,
    rows,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
):
    """Program (r, n, h) computes pairs n · BLOCK … of head h of rows r · ROWS …"""
    head, start = tl.program_id(2), tl.program_id(0) * ROWS
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < DIM // 2
    firsts = weight_slices(weight, head * DIM + pair, inside, K, SLICE)
    seconds = weight_slices(weight, head * DIM + DIM // 2 + pair, inside, K, SLICE)
    factors = value_slices(norm, True, K, SLICE)
    places = ()
    for part in tl.static_range(ROWS):
        row, live = start + part, start + part < rows
        turned = inside & live & (head < QUERY_HEADS + KEY_HEADS)
        cosine = tl.load(cosines + row * turn_row + pair, mask=turned, other=1.0)
        sine = tl.load(signed_sines + row * turn_row + pair + DIM // 2, mask=turned, other=0.0)
        places = places + ((cosine, sine, tl.load(index + row, mask=live, other=0)),)  # noqa: RUF005
    tl.debug_barrier()
    rows_of_x = row_slices(x, x_row, start, rows, K, ROWS, SLICE)
    for part in tl.static_range(ROWS):
        row, kept = start + part, inside & (start + part < rows)
        inputs, scale = normed(rows_of_x[part], factors, eps, K)
        a, b = product(firsts, inputs) * scale, product(seconds, inputs) * scale
        cosine, sine, token = places[part]
        first = a * cosine.to(tl.float32) - b * sine.to(tl.float32)
        second = b * cosine.to(tl.float32) + a * sine.to(tl.float32)
        if head < QUERY_HEADS:
            place = query + (row * QUERY_HEADS + head) * DIM + pair
        elif head < QUERY_HEADS + KEY_HEADS:
            place = keys + token * token_stride + (head - QUERY_HEADS).to(tl.int64) * head_stride + pair
        else:
            place = values + token * token_stride + (head - QUERY_HEADS - KEY_HEADS).to(tl.int64) * head_stride + pair
        tl.store(place, first.to(query.dtype.element_ty), mask=kept)
        tl.store(place + DIM // 2, second.to(query.dtype.element_ty), mask=kept)
