"""Weights and state of a core on its device: what was declared, read, packed and allocated."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from flare.contract.manifest import Extent
from flare.device.replay import Progress
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations, PagedState, Weight, together
from flare.plan.plan import DeviceName
from flare.state.arena import Arena, torch_dtype

Stored = tuple[Callable[[str], Tensor], Weight]
"""A reader of stored tensors by declared name, and one weight it can read."""


def read_weights(
    stored: Sequence[Stored],
    device: DeviceName,
    operators: Operators,
    linear_format: str,
    progress: Progress | None = None,
) -> Storage:
    """Every weight on the device, linears packed; no state yet."""
    weights: dict[str, Tensor] = {}
    linears = {}
    for done, (read, weight) in enumerate(stored, 1):
        tensor = read(weight.name).to(torch_dtype(weight.dtype)).to(device)
        assert tuple(tensor.shape) == weight.shape, (weight.name, tensor.shape, weight.shape)
        if weight.linear:
            linears[weight.name] = operators.pack_linear(tensor, weight.packed_format(linear_format))
        else:
            weights[weight.name] = tensor
        if progress is not None:
            progress("load", done, len(stored))
    return Storage(weights, linears, {})


def allocated(weights: Storage, declared: Iterable[Declarations], extent: Extent, device: DeviceName) -> Storage:
    """The weights with fresh state.

    A CUDA rehearsal reads pages before any was written: zeros keep that finite, and its memory is there at once anyway.
    """
    parts = list(declared)
    arena = Arena(parts, extent, torch.device(device))
    if device == "cuda":
        for state in together(parts).state:
            if isinstance(state, PagedState):
                arena[state.name].zero_()
    return Storage(weights.weights, weights.linears, arena.tensors)
