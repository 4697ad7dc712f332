"""Reference of `route`, `experts` and `add_gated`: row by row, choice by choice, on dense weights."""

import torch
from torch import Tensor

from flare.ops.moe.weights import Routing


def route(logits: Tensor, top_k: int) -> Routing:
    """See the card."""
    chosen, weights = [], []
    for row in logits:
        exponentials = torch.exp(row - row.max())
        order = sorted(range(len(row)), key=lambda expert: (-float(exponentials[expert]), expert))[:top_k]
        chosen.append(torch.tensor(order))
        weights.append(exponentials[order] / exponentials[order].sum())
    return Routing(torch.stack(chosen), torch.stack(weights))


def experts(x: Tensor, routing: Routing, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """See the card; gate, up [E, F, H] and down [E, H, F] plain."""
    rows = []
    for row, chosen, weights in zip(x, routing.experts.tolist(), routing.weights, strict=True):
        total = torch.zeros_like(row)
        for expert, weight in zip(chosen, weights, strict=True):
            gated = gate[expert] @ row
            total += weight * (down[expert] @ (gated / (1 + torch.exp(-gated)) * (up[expert] @ row)))
        rows.append(total)
    return torch.stack(rows)


def add_gated(routed: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    """See the card."""
    return routed + shared / (1 + torch.exp(-gate))
