"""CPU norms: torch's own kernel, one call each, because calls cost as much as the arithmetic of a few rows."""

import torch
from torch import Tensor

from flare.ops.widening import widened


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    return torch.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    return torch.rms_norm(residual.add_(x), weight.shape, weight, eps)


def zero_centred_norm(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    """See the card."""
    grouped = widened(x).unflatten(-1, (groups, -1))
    normed = torch.rms_norm(grouped, grouped.shape[-1:], None, eps).flatten(-2)
    return (normed * (1 + widened(weight))).to(x.dtype)
