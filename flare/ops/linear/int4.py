"""The int4 grid: groups of 32 inputs of one output share a scale and a minimum, as in GGUF's Q4_1.

A weight that came from Q4_1 is found again: its smallest and largest values are the codes 0 and 15 of its group, so
the same codes come out and only the rounding of scale and minimum differs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.plan.packing import INT4_GROUP

LEVELS = 15


@dataclass(frozen=True)
class Grid:
    """weight = minimum + scale · code.

    Attributes:
        codes: [N, K] int32, 0..15.
        scale, minimum: [N, K / 32] float32 (float64 for a float64 weight).
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor


def quantise(weight: Tensor) -> Grid:
    """Round a weight [N, K] to the nearest codes between each group's extremes."""
    wide = weight if weight.dtype == torch.float64 else weight.float()
    groups = wide.unflatten(1, (-1, INT4_GROUP))
    minimum, maximum = torch.aminmax(groups, dim=-1, keepdim=True)
    scale = (maximum - minimum) / LEVELS
    codes = ((groups - minimum) / scale.where(scale > 0, 1)).round()
    return Grid(codes.flatten(1).int(), scale.squeeze(-1), minimum.squeeze(-1))


def restore(grid: Grid) -> Tensor:
    """The weight [N, K] a grid stands for."""
    groups = grid.codes.unflatten(1, (-1, INT4_GROUP)) * grid.scale.unsqueeze(-1) + grid.minimum.unsqueeze(-1)
    return groups.flatten(1)
