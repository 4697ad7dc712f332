"""CPU mixture of experts: each chosen expert is widened once a call and applied to the rows that chose it."""

import torch
from torch import Tensor
from torch.nn import functional

from flare.ops.curves import sigmoid, silu
from flare.ops.formats.nvfp4 import Nvfp4, dequantise_nvfp4
from flare.ops.moe.weights import Experts, Routing, StackedMatrices
from flare.ops.widening import widened

_TILE = 8
"""Rows of every product. BLAS adds in another order for another row count; one count keeps rows bit-equal."""


def route(logits: Tensor, top_k: int) -> Routing:
    """See the card."""
    laws = torch.softmax(widened(logits), -1)
    likely, order = torch.sort(laws, dim=-1, descending=True, stable=True)
    chosen = likely[:, :top_k]
    return Routing(order[:, :top_k], chosen / chosen.sum(-1, keepdim=True))


def experts(x: Tensor, routing: Routing, weights: Experts) -> Tensor:
    """See the card."""
    wide = widened(x)
    total = torch.zeros_like(wide)
    for expert in routing.experts.unique().tolist():
        rows, choice = (routing.experts == expert).nonzero(as_tuple=True)
        gate, up, down = (
            _matrix(stacked, expert).to(wide.dtype) for stacked in (weights.gate, weights.up, weights.down)
        )
        for tile, chosen in zip(rows.split(_TILE), choice.split(_TILE), strict=True):
            filled = torch.constant_pad_nd(wide[tile], (0, 0, 0, _TILE - len(tile)))
            gated = silu(functional.linear(filled, gate)) * functional.linear(filled, up)
            y = functional.linear(gated, down)[: len(tile)]
            total[tile] += routing.weights[tile, chosen, None] * y
    return total.to(x.dtype)


def add_gated(routed: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    """See the card."""
    return (widened(routed) + sigmoid(widened(gate)) * widened(shared)).to(routed.dtype)


def _matrix(stacked: StackedMatrices, expert: int) -> Tensor:
    if isinstance(stacked, Nvfp4):
        return dequantise_nvfp4(Nvfp4(stacked.packed[expert], stacked.scale[expert], stacked.scale_2[expert]))
    return stacked.weight[expert]
