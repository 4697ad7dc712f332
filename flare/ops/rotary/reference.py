"""Reference of rotary positions: angles, then pairs turned one formula at a time."""

import torch
from torch import Tensor


def angles(positions: Tensor, dim: int, base: float) -> Tensor:
    """Angles [R, D / 2] float32 of positions [R]."""
    frequency = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    return positions.float()[:, None] * frequency


def apply_rotary(x: Tensor, angle: Tensor) -> Tensor:
    """Heads [R, H, D] turned by angles [R, D / 2]."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angle.to(x.dtype).cos()[:, None], angle.to(x.dtype).sin()[:, None]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
