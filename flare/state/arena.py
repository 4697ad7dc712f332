"""The arena: allocates exactly what was declared, under the declared names."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from flare.contract.manifest import PAGE_TOKENS, Extent
from flare.plan.declarations import (
    Declarations,
    PagedState,
    RingState,
    RoundBuffer,
    Scratch,
    SlotState,
    State,
)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype a declaration names."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def storage_shape(state: State, extent: Extent) -> tuple[int, ...]:
    """Shape of a declared state's one tensor: requests, then the null slot or page, then snapshots."""
    match state:
        case SlotState():
            return (extent.slots + 1 + extent.snapshots * state.snapshot, *state.entry)
        case RingState():
            return (extent.slots + 1 + extent.snapshots, *state.entry)
        case PagedState():
            return (extent.pages + 1, PAGE_TOKENS, *state.shape)
        case RoundBuffer():
            return state.shape
        case Scratch():
            return (state.size_bytes,)


class Arena:
    """All state of a core. Tensors never move: graphs may keep their addresses."""

    def __init__(self, declared: Iterable[Declarations], extent: Extent, device: torch.device) -> None:
        self.tensors: Mapping[str, Tensor] = _allocate(declared, extent, device)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def bytes_of(self, name: str) -> int:
        """Bytes really held under a name."""
        return self.tensors[name].untyped_storage().nbytes()


def _allocate(declared: Iterable[Declarations], extent: Extent, device: torch.device) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    scratch_bytes = 0
    for declarations in declared:
        for state in declarations.state:
            if isinstance(state, Scratch):
                scratch_bytes = max(scratch_bytes, state.size_bytes)
                continue
            assert state.name not in tensors, f"declared twice: {state.name}"
            shape, dtype = storage_shape(state, extent), torch_dtype(state.dtype)
            if isinstance(state, PagedState):
                tensors[state.name] = _pages(shape, dtype, device, state.heads_outermost)
            else:
                tensors[state.name] = torch.zeros(shape, dtype=dtype, device=device)
    if scratch_bytes:
        tensors["scratch"] = torch.empty(scratch_bytes, dtype=torch.uint8, device=device)
    return tensors


def _pages(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, heads_outermost: bool) -> Tensor:
    """Pages are written before they are read; leaving them untouched lets the system map them on first use."""
    if not heads_outermost:
        return torch.empty(shape, dtype=dtype, device=device)
    pages, tokens, heads, *entry = shape
    return torch.empty((heads, pages, tokens, *entry), dtype=dtype, device=device).movedim(0, 2)
