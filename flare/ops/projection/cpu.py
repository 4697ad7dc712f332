"""CPU projections: the operators they are made of, one after the other."""

from torch import Tensor

from flare.ops.activation.cpu import silu_mul
from flare.ops.attention.cpu import write_pages
from flare.ops.linear import PackedLinear
from flare.ops.linear.cpu import linear
from flare.ops.norm.cpu import rms_norm
from flare.ops.projection import Norm, Places
from flare.ops.rotary.cpu import apply_rotary


def project_heads(x: Tensor, norm: Norm, packed: PackedLinear, rotary: tuple[Tensor, Tensor], places: Places) -> Tensor:
    """See the card."""
    key_heads, dim = places.keys.shape[2:]
    fused = linear(rms_norm(x, norm.weight, norm.eps), packed).view(x.shape[0], -1, dim)
    query, key, value = fused.split((fused.shape[1] - 2 * key_heads, key_heads, key_heads), dim=1)
    query, key = apply_rotary(query, key, *rotary)
    write_pages(key, value, places.keys, places.values, places.index)
    return query


def norm_gate(x: Tensor, norm: Norm, packed: PackedLinear) -> Tensor:
    """See the card."""
    return silu_mul(linear(rms_norm(x, norm.weight, norm.eps), packed))


def add_linear(residual: Tensor, x: Tensor, packed: PackedLinear) -> None:
    """See the card."""
    residual.add_(linear(x, packed))
