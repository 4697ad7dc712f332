"""Sigmoid, silu and softplus whose bits do not depend on where in a tensor a value stands.

Torch's own kernels take a scalar function, with other last bits, for the values that do not fill a vector: the result
of a row would depend on how many rows stand before it. `exp` and `log1p` have one function for all.
"""

import torch
from torch import Tensor

_LINEAR_FROM = 20


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(−x))."""
    return x.neg().exp_().add_(1).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(−x))."""
    return x / x.neg().exp_().add_(1)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), which is x from 20 on."""
    return torch.where(x > _LINEAR_FROM, x, x.exp().log1p_())
