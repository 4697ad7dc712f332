"""Products of very few rows without matrix units: one warp per few outputs, every load under way before the first sum.

At so few rows a product is the latency of one read. A warp holds whole weight rows in registers, 16 bytes per lane and
load, sums on its own and adds its lanes up at the end, so nothing goes through shared memory and no warp waits for
another. Rows are summed one after the other by the same steps, so a row's bits do not depend on the others.

A barrier stands between the reads of the weight and those of x: else the compiler, to save registers, multiplies the
first weights before it asks for the last, and the latency of memory is paid twice.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false
# pyright: reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def weight_slices(weight, column, inside, K: tl.constexpr, SLICE: tl.constexpr):
    """Rows `column` [N] of weight [·, K], as a tuple of tiles [N, SLICE] that are 0 past K."""
    slices = ()
    place = weight + column.to(tl.int64)[:, None] * K
    for start in tl.static_range(0, K, SLICE):
        k = start + tl.arange(0, SLICE)[None, :]
        slices = slices + (tl.load(place + k, mask=inside[:, None] & (k < K), other=0.0),)  # noqa: RUF005
    return slices


@triton.jit
def value_slices(x, live, K: tl.constexpr, SLICE: tl.constexpr):
    """The K values at x as a tuple of tiles [1, SLICE], 0 past K and where the row is not `live`."""
    slices = ()
    for start in tl.static_range(0, K, SLICE):
        k = start + tl.arange(0, SLICE)[None, :]
        slices = slices + (tl.load(x + k, mask=(k < K) & live, other=0.0),)  # noqa: RUF005
    return slices


@triton.jit
def row_slices(x, x_row, first, rows, K: tl.constexpr, ROWS: tl.constexpr, SLICE: tl.constexpr):
    """Rows first … first + ROWS − 1 of x, each a tuple of tiles [1, SLICE]."""
    values = ()
    for index in tl.static_range(ROWS):
        row = first + index
        values = values + (value_slices(x + row * x_row, row < rows, K, SLICE),)  # noqa: RUF005
    return values


@triton.jit
def product(weights, values):
    """Sums of weights [N, SLICE] times values [1, SLICE] over all slices: [N] float32."""
    total = weights[0].to(tl.float32) * values[0].to(tl.float32)
    for index in tl.static_range(1, len(values)):
        total += weights[index].to(tl.float32) * values[index].to(tl.float32)
    return tl.sum(total, 1)


@triton.jit
def normed(values, factors, eps, K: tl.constexpr):
    """A row times the norm's factors, and 1 / its root mean square [1], by which the caller scales its products."""
    slices = ()
    for index in tl.static_range(len(values)):
        slices = slices + (values[index].to(tl.float32) * factors[index].to(tl.float32),)  # noqa: RUF005
    return slices, tl.rsqrt(product(values, values) / K + eps)


@triton.jit(do_not_specialize=["rows"])
def linear_vector(
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
    SLICE: tl.constexpr,
):
    """Program (r, n) computes outputs n · BLOCK … of rows r · ROWS …; with ADDED it adds them to what y holds."""
    column, first = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.program_id(0) * ROWS
    inside = column < columns
    weights = weight_slices(weight, column, inside, K, SLICE)
    held = ()
    if ADDED:
        for index in tl.static_range(ROWS):
            place = y + (first + index) * y_row + column
            held = held + (tl.load(place, mask=inside & (first + index < rows), other=0.0),)  # noqa: RUF005
    tl.debug_barrier()
    values = row_slices(x, x_row, first, rows, K, ROWS, SLICE)
    for index in tl.static_range(ROWS):
        row = first + index
        total = product(weights, values[index])
        if ADDED:
            total += held[index].to(tl.float32)
        tl.store(y + row * y_row + column, total.to(y.dtype.element_ty), mask=inside & (row < rows))
