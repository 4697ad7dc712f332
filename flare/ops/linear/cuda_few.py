"""Products of few rows on matrix units: weights on the instruction's tall side, rows of x as its columns, "seats".

So few rows cost one read of the weight, whatever their number: what counts is that all of it is under way at once and
that nothing stands between memory and the matrix unit. Lane 4 g + t of a warp reads 16 bytes of weight row g at byte
16 t of each 64: those are the places where the instruction wants that row's weights, in some order of k. The same order
is given to x, so neither goes through shared memory. Inputs are dealt to the warps of a program tile by tile; only
their sums meet in shared memory.

Left alone, the compiler multiplies the first weights before it asks for the last, and memory's latency is paid several
times. A barrier after the reads of the weight sends them first; a second one, and a branch that is always taken, hold
the products back behind all reads and the norm, which is done while the weights are on their way.

Eight rows at a time are summed, and always by the same steps: seats past the last row repeat it and are not stored. So
a row's bits depend neither on how many rows there are nor on its seat.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false
# pyright: reportOperatorIssue=false

import triton
import triton.language as tl

from flare.ops.cuda_early import await_earlier

SEATS = tl.constexpr(8)
"""Columns of the matrix instruction, and rows of a warp's read."""


@triton.jit
def places(COUNT: tl.constexpr, SLICES: tl.constexpr):
    """Which of COUNT rows, and which slice of its inputs, each row of a read is: [COUNT · SLICES] twice."""
    place = tl.arange(0, COUNT * SLICES)
    return place // (SLICES * SEATS) * SEATS + place % SEATS, place // SEATS % SLICES


@triton.jit
def read(row, k, start, K: tl.constexpr, STEP: tl.constexpr, TILES: tl.constexpr):
    """TILES tiles [N, TILE] of the rows at pointers [N]: inputs start + k, STEP further and so on, 0 past K."""
    tiles = ()
    for index in tl.static_range(TILES):
        tiles = tiles + (read_tile(row, k, start, index, K, STEP, TILES),)  # noqa: RUF005
    return tiles


@triton.jit
def read_tile(row, k, start, INDEX: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr, TILES: tl.constexpr):
    at = start + INDEX * STEP + k
    # Where one pass takes all inputs, only a tile that reaches past them needs a mask.
    if K % (STEP * TILES) != 0 and (K > STEP * TILES or (INDEX + 1) * STEP > K):
        return tl.load(row[:, None] + at, mask=at < K, other=0.0)
    else:
        return tl.load(row[:, None] + at)


@triton.jit
def dealt(values, SLICES: tl.constexpr):
    """A read [COUNT · SLICES, TILE] as slices [SLICES, COUNT, TILE], in the matrix unit's order of k."""
    count: tl.constexpr = values.shape[0] // SLICES
    tile: tl.constexpr = values.shape[1]
    values = tl.reshape(values, (count // SEATS, SLICES, SEATS, 4, tile // 16, 2, 2))
    return tl.reshape(tl.permute(values, (1, 0, 2, 4, 5, 3, 6)), (SLICES, count, tile))


@triton.jit
def root_scale(squares, eps, K: tl.constexpr, SLICES: tl.constexpr):
    """1 / root mean square [COUNT] of rows whose squares were summed as they were read [COUNT · SLICES, TILE]."""
    count: tl.constexpr = squares.shape[0] // SLICES
    sums = tl.sum(tl.reshape(tl.sum(squares, 1), (count // SEATS, SLICES, SEATS)), 1)
    return tl.rsqrt(tl.reshape(sums, (count,)) / K + eps)


@triton.jit
def squared(values):
    """Sum of the squares of all tiles, float32."""
    total = values[0].to(tl.float32) * values[0].to(tl.float32)
    for index in tl.static_range(1, len(values)):
        total += values[index].to(tl.float32) * values[index].to(tl.float32)
    return total


@triton.jit
def multiplied(values, factors):
    """Tiles of rows times tiles of the norm's factors, rounded to their type."""
    tiles = ()
    for index in tl.static_range(len(values)):
        tiles = tiles + (values[index] * factors[index],)  # noqa: RUF005
    return tiles


@triton.jit
def added(even, odd, weights, values, SLICES: tl.constexpr):
    """Two sums [SLICES, N, ROWS] + the products of the tiles; two, because each waits for its last product."""
    for index in tl.static_range(len(values)):
        seated = tl.trans(dealt(values[index], SLICES), (0, 2, 1))
        if index % 2 == 0:
            even = tl.dot(dealt(weights[index], SLICES), seated, even, input_precision="ieee")
        else:
            odd = tl.dot(dealt(weights[index], SLICES), seated, odd, input_precision="ieee")
    return even, odd


@triton.jit
def few_products(
    x, weight, norm, output, addend, kept, x_row, eps, rows,
    K: tl.constexpr, ROWS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr,
    NORMED: tl.constexpr, ADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Rows `output` [N · SLICES] of weight [·, K], as `places` orders them, times rows of x: [N, ROWS] float32.

    With NORMED rows are multiplied by the norm's factors, rounded to their type, and products scaled afterwards. With
    ADDED what lies at the pointers addend [N, ROWS] is added where `kept`. Only weights are read before earlier kernels
    are waited for.
    """
    tile: tl.constexpr = 512 // weight.dtype.element_ty.primitive_bitwidth
    step: tl.constexpr = SLICES * tile
    outputs: tl.constexpr = output.shape[0] // SLICES
    column = tl.arange(0, tile)[None, :]
    k_weight = places(outputs, SLICES)[1][:, None] * tile + column
    seat, slice_of_seat = places(ROWS, SLICES)
    k_x = slice_of_seat[:, None] * tile + column
    weight_row, x_place = weight + output.to(tl.int64) * K, x + tl.minimum(seat, rows - 1) * x_row
    even, odd = tl.zeros((SLICES, outputs, ROWS), tl.float32), tl.zeros((SLICES, outputs, ROWS), tl.float32)
    held = tl.zeros((outputs, ROWS), x.dtype.element_ty)
    squares, scale = tl.zeros((ROWS * SLICES, tile), tl.float32), tl.zeros((ROWS,), tl.float32)
    for start in tl.range(0, K, step * TILES, num_stages=1):
        weights = read(weight_row, k_weight, start, K, step, TILES)
        if NORMED:
            factors = read(norm + tl.zeros_like(seat), k_x, start, K, step, TILES)
        tl.debug_barrier()
        await_earlier(EARLY)
        values = read(x_place, k_x, start, K, step, TILES)
        if ADDED:
            held = tl.load(addend, mask=kept, other=0.0)
        if NORMED:
            squares += squared(values)
            values = multiplied(values, factors)
            # The last pass knows all squares.
            scale = root_scale(squares, eps, K, SLICES)
        tl.debug_barrier()
        if rows > 0:
            even, odd = added(even, odd, weights, values, SLICES)
    total = even + odd
    if SLICES == 2:
        # One exchange between the two warps; a sum over an axis of warps takes two.
        low, high = tl.split(tl.permute(total, (1, 2, 0)))
        sums = low + high
    else:
        sums = tl.sum(total, 0)
    if NORMED:
        sums *= scale[None, :]
    if ADDED:
        sums += held.to(tl.float32)
    return sums


@triton.jit(do_not_specialize=["rows"])
def linear_few(
    x, weight, y, x_row, y_row, rows, columns,
    K: tl.constexpr, ADDED: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program n computes outputs n · OUTPUTS … of every row; with ADDED it adds them to what y holds."""
    first = tl.program_id(0) * OUTPUTS
    row, column = tl.arange(0, ROWS), first + tl.arange(0, OUTPUTS)
    place = y + row[None, :] * y_row + column[:, None]
    kept = (row < rows)[None, :] & (column < columns)[:, None]
    # Outputs past the last repeat it.
    output = tl.minimum(first + places(OUTPUTS, SLICES)[0], columns - 1)
    total = few_products(
        x, weight, weight, output, place, kept, x_row, 0.0, rows, K, ROWS, SLICES, TILES, False, ADDED, EARLY
    )
    tl.store(place, total.to(y.dtype.element_ty), mask=kept)
