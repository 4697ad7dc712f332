"""Reference of `project_heads`, `norm_gate` and `add_linear`, on plain weights."""

from torch import Tensor

from flare.ops.activation.reference import silu_mul
from flare.ops.attention.reference import write_pages
from flare.ops.linear.reference import linear
from flare.ops.norm.reference import rms_norm
from flare.ops.projection import Norm, Places
from flare.ops.rotary.reference import apply_rotary


def project_heads(x: Tensor, norm: Norm, weight: Tensor, angle: Tensor, places: Places) -> Tensor:
    """See the card; angles [R, D / 2] stand for the rotary rows."""
    key_heads, dim = places.keys.shape[2:]
    heads = linear(rms_norm(x, norm.weight, norm.eps), weight).unflatten(1, (-1, dim))
    turned = apply_rotary(heads[:, :-key_heads], angle)
    write_pages(turned[:, -key_heads:], heads[:, -key_heads:], places.keys, places.values, places.index)
    return turned[:, :-key_heads]


def norm_gate(x: Tensor, norm: Norm, weight: Tensor) -> Tensor:
    """See the card."""
    return silu_mul(linear(rms_norm(x, norm.weight, norm.eps), weight))


def add_linear(residual: Tensor, x: Tensor, weight: Tensor) -> None:
    """See the card."""
    residual += linear(x, weight)
