"""The product of up to 32 rows on matrix units: slices of the inputs summed by warps on their own, then added.

A round's product is a read of the weight: what counts is that all of it is under way at once. A tile of outputs is cut
along the inputs into one slice per warp (a batched `tl.dot`), so no warp waits for another before the final sum; where
there are outputs enough to fill the chip without, a tile is one product of all its warps. Rows are filled up to 16 or
32, and cuts follow from the weight's shape alone, so a row's bits depend neither on how many rows there are nor on the
others.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl


@triton.jit
def rows_dot(
    x,
    weight,
    x_row,
    rows,
    column,
    inside,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    SLICE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Products of rows x [rows, K] with rows `column` [N] of weight [·, K]: [ROWS, N] float32."""
    if SLICES == 1:
        return _whole_dot(x, weight, x_row, rows, column, inside, K, ROWS, SLICE, STAGES)
    row = tl.arange(0, ROWS)
    width: tl.constexpr = column.shape[0]
    part = tl.arange(0, SLICES)[:, None] * SLICE + tl.arange(0, SLICE)[None, :]
    total = tl.zeros((SLICES, ROWS, width), tl.float32)
    place = column.to(tl.int64)[None, None, :] * K
    live = (row < rows)[None, :, None]
    for start in tl.range(0, K, SLICES * SLICE, num_stages=STAGES):
        k = start + part
        w = tl.load(weight + place + k[:, :, None], mask=(k < K)[:, :, None] & inside[None, None, :], other=0.0)
        values = tl.load(x + row[None, :, None] * x_row + k[:, None, :], mask=(k < K)[:, None, :] & live, other=0.0)
        total = tl.dot(values, w, total, input_precision="ieee")
    return tl.sum(total, 0)


@triton.jit
def _whole_dot(
    x, weight, x_row, rows, column, inside,
    K: tl.constexpr, ROWS: tl.constexpr, SLICE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row, part = tl.arange(0, ROWS), tl.arange(0, SLICE)
    width: tl.constexpr = column.shape[0]
    total = tl.zeros((ROWS, width), tl.float32)
    place, live = column.to(tl.int64)[None, :] * K, (row < rows)[:, None]
    for start in tl.range(0, K, SLICE, num_stages=STAGES):
        k = start + part
        w = tl.load(weight + place + k[:, None], mask=(k < K)[:, None] & inside[None, :], other=0.0)
        values = tl.load(x + row[:, None] * x_row + k[None, :], mask=(k < K)[None, :] & live, other=0.0)
        total = tl.dot(values, w, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["rows"])
def linear_rows(
    x,
    weight,
    y,
    x_row,
    y_row,
    rows,
    columns,
    K: tl.constexpr,
    ADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICES: tl.constexpr,
    SLICE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program n computes outputs n · BLOCK … of every row; with ADDED it adds them to what y holds."""
    row, column = tl.arange(0, ROWS), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    kept = (row < rows)[:, None] & inside[None, :]
    place = y + row[:, None] * y_row + column[None, :]
    if ADDED:
        held = tl.load(place, mask=kept, other=0.0).to(tl.float32)
    total = rows_dot(x, weight, x_row, rows, column, inside, K, ROWS, SLICES, SLICE, STAGES)
    if ADDED:
        total += held
    tl.store(place, total.to(y.dtype.element_ty), mask=kept)
