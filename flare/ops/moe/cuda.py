"""CUDA mixture of experts: routing, two launches over the chosen experts, and the weighted sum.

NVFP4 goes one of three ways by the number of rows, which a captured graph knows. Few rows of bfloat16 look through the
choices themselves; some more read pairs sorted by expert on the device; many take tiles of them, the more pairs a tile
the more rows. Dense matrices always go in sorted tiles of 16. As many tiles are launched as could ever be needed, so
that nothing is read back. NVFP4 in float32, for tests, goes the third way in tiles of 16 pairs whatever R is, so that
its sums have one order.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from flare.ops.formats.nvfp4 import Nvfp4
from flare.ops.moe import cuda_few, cuda_kernels, cuda_many
from flare.ops.moe.weights import DenseMatrices, Experts, Routing, StackedMatrices

_FEW_ROWS = 32
"""Up to here a warp looks through all choices."""
_SEATED_ROWS = 128
"""Up to here an expert has a few rows at most, and tiles of `cuda_few.SEATS` pairs hold them."""
_FEW_DTYPES = (torch.bfloat16,)
_FEW_PAIRS = 4096
"""Up to here pairs are sorted in small blocks, so that there are enough of them to share the tiles."""
_BLOCK = 1024


class _Few(NamedTuple):
    """What a warp of few rows takes: output columns, tiles of 128 elements under way at once, most registers."""

    columns: int
    tiles: int
    registers: int | None = None


class _Shape(NamedTuple):
    """A program of many rows: output columns (64 or more per four warps), warps, steps under way, most registers."""

    columns: int
    warps: int
    stages: int
    registers: int | None = None


class _Many(NamedTuple):
    """Tiles of `seats` pairs up to `rows`; gated products in one bfloat16 or in two halves; the two programs."""

    rows: float
    seats: int
    halves: int
    gate_up: _Shape
    down: _Shape


# The best of those timed on an H200 at hidden size 2560, 512 experts of 640 channels and 10 choices.
_GATE_UP_FEW, _DOWN_FEW = _Few(8, 4, 128), _Few(32, 5)
_GATE_UP_SEATED, _DOWN_SEATED = _Few(8, 5, 128), _Few(32, 5, 168)
# Tiles up to 32 wait for memory. Larger ones wait for the matrix unit, of whose work the lower half would be a quarter;
# it would save the result a second rounding of 2^−9, as large as its own.
_MANY = (
    _Many(512, 16, 2, _Shape(64, 4, 4), _Shape(128, 4, 3)),
    _Many(1024, 32, 2, _Shape(64, 4, 3, 128), _Shape(128, 4, 3)),
    _Many(2048, 64, 1, _Shape(64, 4, 3), _Shape(128, 4, 3)),
    _Many(float("inf"), 128, 1, _Shape(128, 8, 3), _Shape(64, 4, 3)),
)
_IN_FLOAT32 = _Many(float("inf"), 16, 1, _Shape(32, 4, 1), _Shape(64, 4, 1))
_DENSE_SEATS = 16


class _Tiles(NamedTuple):
    """Pairs [R · k] int32 sorted by expert, and tiles [3, count] int32: each one's expert, first and stop of it."""

    order: Tensor
    tiles: Tensor

    @property
    def number(self) -> int:
        return self.tiles.shape[1]


class _Matrix(NamedTuple):
    """A stacked NVFP4 matrix as the kernels take it."""

    packed: Tensor
    scale: Tensor
    factor: Tensor


class _Matrices(NamedTuple):
    """All of a call's weights."""

    gate: _Matrix
    up: _Matrix
    down: _Matrix

    @property
    def ffn(self) -> int:
        return self.gate.packed.shape[1]


def route(logits: Tensor, top_k: int) -> Routing:
    """See the card."""
    rows, experts = logits.shape
    assert logits.stride(1) == 1, "logits of a row lie side by side"
    ids = torch.empty(rows, top_k, dtype=torch.int64, device=logits.device)
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    cuda_kernels.choose[(rows,)](
        logits, ids, weights, experts, logits.stride(0), CHOICES=top_k, PADDED=triton.next_power_of_2(experts),
        num_warps=1,
    )  # fmt: skip
    return Routing(ids, weights)


def experts(x: Tensor, routing: Routing, weights: Experts) -> Tensor:
    """See the card."""
    x, ids = x.contiguous(), routing.experts.contiguous()
    rows, hidden = x.shape
    out, choices = _products(x, ids, weights), ids.shape[1]
    y = torch.empty_like(x)
    cuda_kernels.combine[(triton.cdiv(hidden, _BLOCK), rows)](
        out, ids, routing.weights.contiguous(), y, hidden,
        CHOICES=choices, PADDED=triton.next_power_of_2(choices), BLOCK=_BLOCK,
    )  # fmt: skip
    return y


def add_gated(routed: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    """See the card."""
    routed, shared = routed.contiguous(), shared.contiguous()
    rows, hidden = routed.shape
    y = torch.empty_like(routed)
    cuda_kernels.gated_sum[(triton.cdiv(hidden, _BLOCK), rows)](
        routed, shared, gate, y, hidden, gate.stride(0), BLOCK=_BLOCK
    )
    return y


def _products(x: Tensor, ids: Tensor, weights: Experts) -> Tensor:
    """What each of the R · k pairs adds, before its weight: [R · k, H] float32."""
    out = torch.empty(ids.numel(), x.shape[1], dtype=torch.float32, device=x.device)
    match weights:
        case Experts(Nvfp4() as gate, Nvfp4() as up, Nvfp4() as down):
            matrices = _Matrices(_packed(gate), _packed(up), _packed(down))
            if x.dtype not in _FEW_DTYPES:
                _many(x, ids, matrices, out, _IN_FLOAT32)
            elif len(x) <= _SEATED_ROWS:
                _few(x, ids, matrices, out)
            else:
                _many(x, ids, matrices, out, next(kind for kind in _MANY if len(x) <= kind.rows))
        case _:
            _dense(x, ids, weights, out)
    return out


def _few(x: Tensor, ids: Tensor, weights: _Matrices, out: Tensor) -> None:
    (rows, hidden), choices, ffn = x.shape, ids.shape[1], weights.ffn
    pairs = rows * choices
    gated = x.new_empty(_halves(x), pairs, ffn)
    common = {"HIDDEN": hidden, "FFN": ffn, "CHOICES": choices, "PADDED": triton.next_power_of_2(choices)}
    if rows <= _FEW_ROWS:
        common["ROWS"] = max(8, triton.next_power_of_2(rows))
        # Neither order nor tiles are read.
        choosing, programs, shapes = (ids, ids, ids, rows), pairs, (_GATE_UP_FEW, _DOWN_FEW)
    else:
        common["ROWS"] = 0
        tiles = _sorted(ids, len(weights.gate.packed), cuda_few.SEATS.value)
        choosing, programs, shapes = (ids, *tiles, rows), tiles.number, (_GATE_UP_SEATED, _DOWN_SEATED)
    columns, steps, registers = shapes[0]
    cuda_few.gate_up_few[(triton.cdiv(ffn, columns), programs)](
        x, *weights.gate, *weights.up, gated, *choosing,
        **common, COLUMNS=columns, **_steps(hidden, steps), num_warps=1, maxnreg=registers,
    )  # fmt: skip
    columns, steps, registers = shapes[1]
    cuda_few.down_few[(triton.cdiv(hidden, columns), programs)](
        gated, *weights.down, out, *choosing,
        **common, COLUMNS=columns, **_steps(ffn, steps), num_warps=1, maxnreg=registers,
    )  # fmt: skip


def _many(x: Tensor, ids: Tensor, weights: _Matrices, out: Tensor, kind: _Many) -> None:
    (rows, hidden), ffn, pairs = x.shape, weights.ffn, ids.numel()
    tiles = _sorted(ids, len(weights.gate.packed), kind.seats)
    tile = cuda_many.TILE.value
    long, wide = triton.cdiv(hidden, tile) * tile, triton.cdiv(ffn, tile) * tile
    placed, gated = x.new_empty(rows, long), x.new_empty(kind.halves, pairs, wide)
    cuda_many.arranged[(triton.cdiv(long, _BLOCK), rows)](x, placed, HIDDEN=hidden, LONG=long, BLOCK=_BLOCK)
    common = {"HIDDEN": hidden, "FFN": ffn, "WIDE": wide, "SEATS": kind.seats, "HALVES": kind.halves == 2}
    columns, warps, stages, registers = kind.gate_up
    cuda_many.gate_up_many[(triton.cdiv(wide, columns), tiles.number)](
        placed, *weights.gate, *weights.up, gated, *tiles, gated.stride(0),
        **common, LONG=long, CHOICES=ids.shape[1], COLUMNS=columns, STAGES=stages, num_warps=warps, maxnreg=registers,
    )  # fmt: skip
    columns, warps, stages, registers = kind.down
    cuda_many.down_many[(triton.cdiv(hidden, columns), tiles.number)](
        gated, *weights.down, out, *tiles, gated.stride(0),
        **common, COLUMNS=columns, STAGES=stages, num_warps=warps, maxnreg=registers,
    )  # fmt: skip


def _dense(x: Tensor, ids: Tensor, weights: Experts, out: Tensor) -> None:
    gate, up, down = (_plain(matrix) for matrix in (weights.gate, weights.up, weights.down))
    hidden, (count, ffn), pairs = x.shape[1], gate.shape[:2], ids.numel()
    gated = x.new_empty(_halves(x), pairs, ffn)
    tiles = _sorted(ids, count, _DENSE_SEATS)
    common = {"HIDDEN": hidden, "FFN": ffn, "SEATS": _DENSE_SEATS}
    cuda_kernels.gate_up[(triton.cdiv(ffn, 32), tiles.number)](
        x, gate, up, gated, *tiles, pairs, **common, CHOICES=ids.shape[1], COLUMNS=32, BLOCK=_depth(hidden)
    )
    cuda_kernels.down[(triton.cdiv(hidden, 64), tiles.number)](
        gated, down, out, *tiles, pairs, **common, COLUMNS=64, BLOCK=_depth(ffn)
    )


def _packed(matrix: Nvfp4) -> _Matrix:
    made = _Matrix(matrix.packed, matrix.scale, matrix.scale_2)
    assert all(part.is_contiguous() for part in made)
    return made


def _plain(matrix: StackedMatrices) -> Tensor:
    assert isinstance(matrix, DenseMatrices), "gate, up and down are stored alike"
    assert matrix.weight.is_contiguous()
    return matrix.weight


def _halves(x: Tensor) -> int:
    """Parts that hold a float32 product: its bfloat16 and what that leaves."""
    return 1 if x.dtype == torch.float32 else 2


def _depth(elements: int) -> int:
    """Elements of a dense product's step."""
    return 64 if elements > 32 else 32


def _steps(elements: int, largest: int) -> dict[str, int | bool]:
    """Tiles of a step, at most `largest`, such that no step ends behind the last tile; whether that tile is whole."""
    tile = cuda_few.TILE.value
    count = triton.cdiv(elements, tile)
    return {"TILES": max(n for n in range(1, largest + 1) if count % n == 0), "WHOLE": elements % tile == 0}


def _sorted(ids: Tensor, experts: int, seats: int) -> _Tiles:
    """Pairs sorted by expert, in tiles of up to `seats`; as many tiles as any choice could need."""
    pairs, padded = ids.numel(), triton.next_power_of_2(experts)
    block = 64 if pairs <= _FEW_PAIRS else 512
    blocks, named = triton.cdiv(pairs, block), min(experts, pairs)
    counts, places = ids.new_empty(2, blocks, padded, dtype=torch.int32)
    order = ids.new_empty(pairs, dtype=torch.int32)
    # An expert's pairs past the first fill tiles by `seats`.
    tiles = ids.new_empty(3, named + (pairs - named) // seats, dtype=torch.int32)
    cuda_kernels.count_choices[(blocks,)](ids, counts, pairs, PADDED=padded, BLOCK=block)
    cuda_kernels.sort_pairs[(blocks,)](
        ids, counts, places, order, tiles, pairs, tiles.shape[1],
        SEATS=seats, PADDED=padded, BLOCK=block, STEP=16, num_warps=8,
    )  # fmt: skip
    return _Tiles(order, tiles)
