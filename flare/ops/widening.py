"""Widening: the dtype operators compute in, between reading their inputs and rounding once at the end."""

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """A float64 tensor as it is, any narrower float as float32."""
    return x if x.dtype == torch.float64 else x.float()
