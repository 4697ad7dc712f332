"""Reference of `linear`: the definition, on plain weights."""

from torch import Tensor

from flare.ops.linear.int4 import quantise, restore


def stored_weight(weight: Tensor, linear_format: str) -> Tensor:
    """The weight [N, K] a format really multiplies by, before scales are rounded to the activations' dtype."""
    return restore(quantise(weight)) if linear_format == "int4" else weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Rows [R, K] times weight [N, K], one dot product per element."""
    return (x[:, None, :] * weight[None, :, :]).sum(-1)
