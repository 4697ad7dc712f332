"""CPU hyperconnections, in torch."""

from torch import Tensor

from flare.ops.curves import sigmoid, silu
from flare.ops.widening import widened


def scaled_silu(x: Tensor, divisor: float) -> Tensor:
    """See the card."""
    return silu(widened(x) / divisor).to(x.dtype)


def mix_streams(normed: Tensor, gate: Tensor, streams: int) -> Tensor:
    """See the card."""
    gated = sigmoid(widened(gate)) * widened(normed)
    return gated.unflatten(-1, (streams, -1)).mean(1).to(normed.dtype)


def inject_streams(residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
    """See the card."""
    streams = injection.shape[1]
    weights = 2 * sigmoid(widened(injection) / streams)
    injected = weights[:, :, None] * widened(y)[:, None, :]
    return (widened(residual) + injected.flatten(1)).to(residual.dtype)
