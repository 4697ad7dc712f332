"""Binding one layer alone: random weights of what it declared, packed linears, an arena."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flare import ops
from flare.contract.manifest import Extent
from flare.layers.storage import Storage
from flare.plan.declarations import Declarations
from flare.state.arena import Arena, torch_dtype

CPU = ops.load("cpu")
SLOTS = 6
EXTENT = Extent(
    lanes=4, slots=SLOTS, pages=8, pages_per_request=2, width=8, chunk=64, context=128, vocab=96, logprobs=0
)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_weights(declared: Declarations) -> dict[str, Tensor]:
    """Matrices that keep a row's size, norms and taps of a few tenths; float weights only."""
    weights = {}
    for seed, weight in enumerate(declared.weights):
        if weight.dtype in ("float64", "float32", "bfloat16"):
            scale = weight.shape[-1] ** -0.5 if weight.linear else 0.4
            weights[weight.name] = draw(*weight.shape, dtype=torch_dtype(weight.dtype), seed=seed) * scale
    return weights


def stored(declared: Declarations, weights: Mapping[str, Tensor]) -> Storage:
    """Storage of everything declared, shapes and dtypes checked."""
    for weight in declared.weights:
        tensor = weights[weight.name]
        assert (tuple(tensor.shape), tensor.dtype) == (weight.shape, torch_dtype(weight.dtype)), weight.name
    linear = {weight.name for weight in declared.weights if weight.linear}
    return Storage(
        weights={name: tensor for name, tensor in weights.items() if name not in linear},
        linears={name: CPU.pack_linear(weights[name], "dense") for name in linear},
        state=Arena([declared], EXTENT, torch.device("cpu")).tensors,
    )
