"""Kernels of the projections for up to 32 normed rows: product and what follows in one launch each."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.linear.cuda_rows import rows_dot


@triton.jit(do_not_specialize=["rows"])
def gate_rows(
    x,
    weight,
    y,
    x_row,
    rows,
    F: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICES: tl.constexpr,
    SLICE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program n gates inner channels n · BLOCK / 2 …: its columns take gate and up of a channel in turn."""
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    channel = tl.program_id(0) * (BLOCK // 2) + column // 2
    output, inside = channel + column % 2 * F, channel < F
    total = rows_dot(x, weight, x_row, rows, output, inside, K, ROWS, SLICES, SLICE, STAGES)
    gate, up = tl.split(tl.reshape(total, (ROWS, BLOCK // 2, 2)))
    written = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
    gated = gate * tl.sigmoid(gate) * up
    kept = (row < rows)[:, None] & (written < F)[None, :]
    tl.store(y + row[:, None] * F + written[None, :], gated.to(y.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["rows"])
def head_rows(
    x,
    weight,
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
    rows,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICES: tl.constexpr,
    SLICE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program (h, n) computes pairs n · BLOCK / 2 … of head h: its columns take the two halves of a pair in turn."""
    head, row, column = tl.program_id(0), tl.arange(0, ROWS), tl.arange(0, BLOCK)
    channel = tl.program_id(1) * (BLOCK // 2) + column // 2
    output = head * DIM + channel + column % 2 * (DIM // 2)
    pair = tl.program_id(1) * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
    kept = (row < rows)[:, None] & (pair < DIM // 2)[None, :]
    turn, turned = row[:, None] * turn_row + pair[None, :], kept & (head < QUERY_HEADS + KEY_HEADS)
    cosine = tl.load(cosines + turn, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(signed_sines + turn + DIM // 2, mask=turned, other=0.0).to(tl.float32)
    token = tl.load(index + row, mask=row < rows, other=0) * token_stride
    total = rows_dot(x, weight, x_row, rows, output, channel < DIM // 2, K, ROWS, SLICES, SLICE, STAGES)
    first, second = tl.split(tl.reshape(total, (ROWS, BLOCK // 2, 2)))
    first, second = first * cosine - second * sine, second * cosine + first * sine
    if head < QUERY_HEADS:
        place = query + (row[:, None] * QUERY_HEADS + head) * DIM + pair[None, :]
        tl.store(place, first.to(query.dtype.element_ty), mask=kept)
        tl.store(place + DIM // 2, second.to(query.dtype.element_ty), mask=kept)
    else:
        own = head.to(tl.int64) - QUERY_HEADS
        if own < KEY_HEADS:
            place = keys + token[:, None] + own * head_stride + pair[None, :]
        else:
            place = values + token[:, None] + (own - KEY_HEADS) * head_stride + pair[None, :]
        tl.store(place, first.to(keys.dtype.element_ty), mask=kept)
        tl.store(place + DIM // 2, second.to(keys.dtype.element_ty), mask=kept)
