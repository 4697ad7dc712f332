"""What a mixture of experts reads: the stacked matrices of all experts, and the choice made for each row."""

from dataclasses import dataclass

from torch import Tensor

from flare.ops.formats.nvfp4 import Nvfp4


@dataclass(frozen=True)
class DenseMatrices:
    """One matrix per expert, `weight` [E, out, in] in the model's dtype."""

    weight: Tensor


StackedMatrices = DenseMatrices | Nvfp4
"""All experts' matrices: dense, or NVFP4 (packed [E, out, in / 2], scale [E, out, in / 16], scale_2 [E])."""


@dataclass(frozen=True)
class Experts:
    """gate, up [E, F, H] and down [E, H, F]."""

    gate: StackedMatrices
    up: StackedMatrices
    down: StackedMatrices


@dataclass(frozen=True)
class Routing:
    """experts [R, k] int64 ids, distinct in a row; weights [R, k] float32 (float64 for float64), which sum to 1."""

    experts: Tensor
    weights: Tensor
