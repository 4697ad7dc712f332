"""Reference of `rms_norm`, `add_rms_norm` and `zero_centred_norm`."""

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    residual += x
    return rms_norm(residual, weight, eps)


def zero_centred_norm(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    """See the card."""
    means = x.square().unflatten(-1, (groups, -1)).mean(-1)
    return x / (means + eps).sqrt().repeat_interleave(x.shape[-1] // groups, -1) * (1 + weight)
