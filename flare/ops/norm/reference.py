"""Reference of `rms_norm` and `add_rms_norm`."""

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the card."""
    residual += x
    return rms_norm(residual, weight, eps)
