"""CUDA mixture of experts: routing, two launches over the chosen experts, and the weighted sum.

Up to 32 rows no pair is moved: three launches. More rows are sorted by expert on the device, with as many tiles as
could ever be needed, so that nothing is read back.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from flare.ops.formats.nvfp4 import Nvfp4
from flare.ops.moe import cuda_kernels
from flare.ops.moe.weights import DenseMatrices, Experts, Routing, StackedMatrices

_FEW_ROWS = 32
_TALL_FROM_ROWS = 512
"""From here on an expert has rows enough for tiles of 64."""
_BLOCK = 1024


class _Tiles(NamedTuple):
    """How pairs are grouped: `ids` the choices [R, k], or the sorted pairs with expert, start and stop of each tile."""

    ids: Tensor
    experts: Tensor
    starts: Tensor
    stops: Tensor
    tiles: int
    rows: int
    is_sorted: bool


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
    (rows, hidden), choices = x.shape, ids.shape[1]
    gate, up, down = _matrix(weights.gate), _matrix(weights.up), _matrix(weights.down)
    count, ffn = gate.weight.shape[:2]
    tiles = _few(ids) if rows <= _FEW_ROWS else _many(ids, count)
    columns = 32 if tiles.rows < 64 else 64
    # The same steps through a matrix whatever the tile, so that a row's sums keep their order; what registers allow.
    widest = 128 if gate.is_packed else 64
    named = (tiles.ids, tiles.experts, tiles.starts, tiles.stops, rows, count)
    common = {"SORTED": tiles.is_sorted, "PACKED": gate.is_packed, "HIDDEN": hidden, "FFN": ffn, "ROWS": tiles.rows}
    common |= {"CHOICES": choices, "PADDED": triton.next_power_of_2(choices)}
    gated = x.new_empty(1 if x.dtype == torch.float32 else 2, rows * choices, ffn)
    cuda_kernels.gate_up[(triton.cdiv(ffn, columns), tiles.tiles)](
        x, *gate[:3], *up[:3], gated, *named, **common, COLUMNS=columns, BLOCK=_depth(hidden, widest)
    )
    out = torch.empty(rows * choices, hidden, dtype=torch.float32, device=x.device)
    cuda_kernels.down[(triton.cdiv(hidden, 64), tiles.tiles)](
        gated, *down[:3], out, *named, **common, COLUMNS=64, BLOCK=_depth(ffn, widest)
    )
    return out


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


def _few(ids: Tensor) -> _Tiles:
    return _Tiles(ids, ids, ids, ids, ids.numel(), 16 if ids.shape[0] <= 16 else 32, False)


def _many(ids: Tensor, experts: int) -> _Tiles:
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
    return _Tiles(order, named, first, starts[owner + 1], count, rows, True)
