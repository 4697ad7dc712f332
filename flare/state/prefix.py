"""What a prefix is made of, as tensors: the rows a snapshot copies, and the pages it shares."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from flare.plan.declarations import Declarations, PagedState, RingState, prefix_rows, together

Tables = tuple[tuple[Tensor, Tensor], ...]
"""Pairs (from, to) as `ops.copy_rows` takes them; here both are the same tensor."""


@dataclass(frozen=True)
class PrefixState:
    """Found by declaration, so a new layer is part of every snapshot.

    Attributes:
        rows: all state kept by slot, rings included; a snapshot is a row of each.
        rings: the rings among them: layers write the other rows of a boundary themselves, while they commit.
        pages: all paged state.
    """

    rows: Tables
    rings: Tables
    pages: Tables


def prefix_state(declared: Iterable[Declarations], tensors: Mapping[str, Tensor]) -> PrefixState:
    """The declared state of a prefix among the arena's tensors."""
    state = together(declared).state
    return PrefixState(
        rows=_same(tensors[item.name] for item in prefix_rows(state)),
        rings=_same(tensors[item.name] for item in state if isinstance(item, RingState)),
        pages=_same(tensors[item.name] for item in state if isinstance(item, PagedState)),
    )


def _same(tensors: Iterable[Tensor]) -> Tables:
    return tuple((tensor, tensor) for tensor in tensors)
