"""CUDA mixture of experts: routing, two launches over the chosen experts, and the weighted sum.

Up to 32 rows of bfloat16 and NVFP4 no pair is moved: three launches. Else pairs are sorted by expert on the device,
with as many tiles as could ever be needed, so that nothing is read back. Float32, for tests, is always sorted, so that
its sums have one order whatever R is.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from flare.ops.formats.nvfp4 import Nvfp4
from flare.ops.moe import cuda_few, cuda_kernels
from flare.ops.moe.weights import DenseMatrices, Experts, Routing, StackedMatrices

_FEW_ROWS = 32
_FEW_DTYPES = (torch.bfloat16,)
_TALL_FROM_ROWS = 512
"""From here on an expert has rows enough for tiles of 64."""
_BLOCK = 1024


class _Few(NamedTuple):
    """What a warp of few rows takes: output columns, tiles of 128 elements under way at once, most registers."""

    columns: int
    tiles: int
    registers: int | None = None


_GATE_UP_FEW, _DOWN_FEW = _Few(8, 4, 128), _Few(32, 5)
"""The best of those timed on an H200 at hidden size 2560, 512 experts of 640 channels and 10 choices."""


class _Tiles(NamedTuple):
    """Pairs sorted by expert, and expert, first and stop of each tile of `rows` pairs."""

    order: Tensor
    experts: Tensor
    starts: Tensor
    stops: Tensor
    tiles: int
    rows: int


class _Matrix(NamedTuple):
    """A stacked matrix as the kernels take it."""

    weight: Tensor
    scale: Tensor
    factor: Tensor
    is_packed: bool


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
    gate, up, down = _matrix(weights.gate), _matrix(weights.up), _matrix(weights.down)
    pairs, hidden, ffn = ids.numel(), x.shape[1], gate.weight.shape[1]
    gated = x.new_empty(1 if x.dtype == torch.float32 else 2, pairs, ffn)
    out = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    few = len(x) <= _FEW_ROWS and x.dtype in _FEW_DTYPES and gate.is_packed
    (_few if few else _many)(x, ids, gate, up, down, gated, out)
    return out


def _few(x: Tensor, ids: Tensor, gate: _Matrix, up: _Matrix, down: _Matrix, gated: Tensor, out: Tensor) -> None:
    (rows, hidden), choices, ffn = x.shape, ids.shape[1], gated.shape[2]
    common = {"HIDDEN": hidden, "FFN": ffn, "CHOICES": choices, "PADDED": triton.next_power_of_2(choices)}
    common |= {"ROWS": max(8, triton.next_power_of_2(rows))}
    columns, tiles, registers = _GATE_UP_FEW
    cuda_few.gate_up_few[(triton.cdiv(ffn, columns), ids.numel())](
        x, *gate[:3], *up[:3], gated, ids, rows,
        **common, COLUMNS=columns, **_steps(hidden, tiles), num_warps=1, maxnreg=registers,
    )  # fmt: skip
    columns, tiles, registers = _DOWN_FEW
    cuda_few.down_few[(triton.cdiv(hidden, columns), ids.numel())](
        gated, *down[:3], out, ids, rows,
        **common, COLUMNS=columns, **_steps(ffn, tiles), num_warps=1, maxnreg=registers,
    )  # fmt: skip


def _many(x: Tensor, ids: Tensor, gate: _Matrix, up: _Matrix, down: _Matrix, gated: Tensor, out: Tensor) -> None:
    hidden, (count, ffn) = x.shape[1], gate.weight.shape[:2]
    tiles = _sorted(ids, count)
    columns = 32 if tiles.rows < 64 else 64
    # The same steps through a matrix whatever the tile, so that a row's sums keep their order; what registers allow.
    widest = 128 if gate.is_packed else 64
    named = (*tiles[:4], ids.numel(), count)
    common = {"PACKED": gate.is_packed, "HIDDEN": hidden, "FFN": ffn, "ROWS": tiles.rows}
    cuda_kernels.gate_up[(triton.cdiv(ffn, columns), tiles.tiles)](
        x, *gate[:3], *up[:3], gated, *named, **common, CHOICES=ids.shape[1], COLUMNS=columns,
        BLOCK=_depth(hidden, widest),
    )  # fmt: skip
    cuda_kernels.down[(triton.cdiv(hidden, 64), tiles.tiles)](
        gated, *down[:3], out, *named, **common, COLUMNS=64, BLOCK=_depth(ffn, widest)
    )


def _matrix(stacked: StackedMatrices) -> _Matrix:
    match stacked:
        case Nvfp4(packed, scale, scale_2):
            assert all(part.is_contiguous() for part in (packed, scale, scale_2))
            return _Matrix(packed, scale, scale_2, True)
        case DenseMatrices(weight):
            assert weight.is_contiguous()
            return _Matrix(weight, weight, weight, False)


def _depth(elements: int, largest: int) -> int:
    """Elements of a product's step: a power of two whose even half still fills a matrix instruction."""
    return max(32, min(largest, 1 << (elements - 1).bit_length()))


def _steps(elements: int, largest: int) -> dict[str, int | bool]:
    """Tiles of a step, at most `largest`, such that no step ends behind the last tile; whether that tile is whole."""
    tile = cuda_few.TILE.value
    count = triton.cdiv(elements, tile)
    return {"TILES": max(n for n in range(1, largest + 1) if count % n == 0), "WHOLE": elements % tile == 0}


def _sorted(ids: Tensor, experts: int) -> _Tiles:
    """Pairs sorted by expert, in tiles; tiles past the last name expert E."""
    rows = 16 if ids.shape[0] < _TALL_FROM_ROWS else 64
    pairs = ids.numel()
    by_expert, order = ids.flatten().sort(stable=True)
    starts = torch.searchsorted(by_expert, torch.arange(experts + 1, device=ids.device))
    needed = (starts.diff() + rows - 1) // rows
    ends = needed.cumsum(0)
    count = triton.cdiv(pairs, rows) + min(experts, pairs)
    tile = torch.arange(count, device=ids.device)
    named = torch.searchsorted(ends, tile, right=True)
    owner = named.clamp(max=experts - 1)
    first = starts[owner] + (tile - (ends - needed)[owner]) * rows
    return _Tiles(order, named, first, starts[owner + 1], count, rows)
