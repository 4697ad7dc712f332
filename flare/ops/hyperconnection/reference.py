"""Reference of `scaled_silu`, `mix_streams` and `inject_streams`, stream by stream."""

import torch
from torch import Tensor


def scaled_silu(x: Tensor, divisor: float) -> Tensor:
    """See the card."""
    scaled = x / divisor
    return scaled / (1 + torch.exp(-scaled))


def mix_streams(normed: Tensor, gate: Tensor, streams: int) -> Tensor:
    """See the card."""
    parts = [n / (1 + torch.exp(-g)) for n, g in zip(normed.chunk(streams, 1), gate.chunk(streams, 1), strict=True)]
    return sum(parts[1:], parts[0]) / streams


def inject_streams(residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
    """See the card."""
    streams = injection.shape[1]
    parts = [
        part + 2 / (1 + torch.exp(-injection[:, stream, None] / streams)) * y
        for stream, part in enumerate(residual.chunk(streams, 1))
    ]
    return torch.cat(parts, 1)
