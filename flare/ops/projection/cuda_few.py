"""Kernels of the projections for few rows: norm, product and what follows in one launch each.

The two outputs that belong together, a channel's gate and what it scales or the two halves of a turned pair, are eight
rows apart on the matrix unit's tall side where a program takes 16, so that both sums end in one lane.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.linear.cuda_few import few_products, places


@triton.jit
def halves(total):
    """Sums [2 · N, ROWS] as the first N outputs and the others."""
    outputs: tl.constexpr = total.shape[0]
    rows: tl.constexpr = total.shape[1]
    return tl.split(tl.permute(tl.reshape(total, (2, outputs // 2, rows)), (1, 2, 0)))


@triton.jit(do_not_specialize=["rows"])
def gate_few(
    x, weight, norm, y, x_row, eps, rows,
    F: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program n gates inner channels n · OUTPUTS / 2 …"""
    half: tl.constexpr = OUTPUTS // 2
    row, written = tl.arange(0, ROWS), tl.program_id(0) * half + tl.arange(0, half)
    stacked = places(OUTPUTS, SLICES)[0]
    # Channels past the last repeat it.
    output = tl.minimum(tl.program_id(0) * half + stacked % half, F - 1) + stacked // half * F
    kept = (row < rows)[None, :] & (written < F)[:, None]
    total = few_products(x, weight, norm, output, y, kept, x_row, eps, rows, K, ROWS, SLICES, TILES, True, False, EARLY)
    gate, up = halves(total)
    gated = gate * tl.sigmoid(gate) * up
    tl.store(y + row[None, :] * F + written[:, None], gated.to(y.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["rows"])
def head_few(
    x, weight, norm, cosines, signed_sines, index, query, keys, values,
    x_row, turn_row, token_stride, head_stride, eps, rows,
    QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DIM: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (h, n) computes pairs n · OUTPUTS / 2 … of head h."""
    half: tl.constexpr = OUTPUTS // 2
    head, row = tl.program_id(0), tl.arange(0, ROWS)
    pair = tl.program_id(1) * half + tl.arange(0, half)
    kept = (row < rows)[None, :] & (pair < DIM // 2)[:, None]
    turn, turned = row[None, :] * turn_row + pair[:, None], kept & (head < QUERY_HEADS + KEY_HEADS)
    # Turns and places are the round's, written long before, and read past L1, which may be older.
    cosine = tl.load(cosines + turn, mask=turned, other=1.0, cache_modifier=".cg")
    sine = tl.load(signed_sines + turn + DIM // 2, mask=turned, other=0.0, cache_modifier=".cg")
    token = tl.load(index + row, mask=row < rows, other=0, cache_modifier=".cg")
    stacked = places(OUTPUTS, SLICES)[0]
    # Pairs past the last repeat it.
    channel = tl.minimum(tl.program_id(1) * half + stacked % half, DIM // 2 - 1) + stacked // half * (DIM // 2)
    output = head * DIM + channel
    total = few_products(
        x, weight, norm, output, query, kept, x_row, eps, rows, K, ROWS, SLICES, TILES, True, False, EARLY
    )
    a, b = halves(total)
    first = a * cosine.to(tl.float32) - b * sine.to(tl.float32)
    second = b * cosine.to(tl.float32) + a * sine.to(tl.float32)
    if head < QUERY_HEADS:
        place = query + (row[None, :] * QUERY_HEADS + head) * DIM + pair[:, None]
    else:
        own = head.to(tl.int64) - QUERY_HEADS
        if own < KEY_HEADS:
            place = keys + token[None, :] * token_stride + own * head_stride + pair[:, None]
        else:
            place = values + token[None, :] * token_stride + (own - KEY_HEADS) * head_stride + pair[:, None]
    tl.store(place, first.to(query.dtype.element_ty), mask=kept)
    tl.store(place + DIM // 2, second.to(query.dtype.element_ty), mask=kept)
