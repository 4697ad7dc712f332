"""Reference of `silu_mul`."""

from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """See the card."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up
