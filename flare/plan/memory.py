"""The memory plan: exact bytes per item before anything is allocated.

Items are what the arena allocates one by one. `opaque` items are library storage Flare cannot measure exactly (packed
CPU weights): they carry an upper bound and are reported apart.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flare.contract.frames import argument_arrays, completion_arrays, layout
from flare.contract.manifest import PAGE_TOKENS, Extent
from flare.errors import PlanError
from flare.plan.declarations import (
    Declarations,
    PagedState,
    RingState,
    RoundBuffer,
    Scratch,
    SlotState,
    Weight,
    array_bytes,
)

ItemKind = Literal["weight", "slot", "ring", "pages", "buffer", "scratch", "frame", "opaque"]


@dataclass(frozen=True)
class Item:
    """One allocation: `count` units of `bytes_each`, and which declaration asked for it."""

    name: str
    kind: ItemKind
    count: int
    bytes_each: int
    source: str

    @property
    def bytes(self) -> int:
        """Bytes in all."""
        return self.count * self.bytes_each


@dataclass(frozen=True)
class MemoryPlan:
    """Every item with its bytes; `pages` is what the budget left for paged state, the null page apart."""

    items: tuple[Item, ...]
    pages: int
    budget_bytes: int

    @property
    def total_bytes(self) -> int:
        """All items, opaque bounds included."""
        return sum(item.bytes for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """The document written as `plan.json`."""
        items = [{**asdict(item), "bytes": item.bytes} for item in self.items]
        return {"items": items, "total_bytes": self.total_bytes, "pages": self.pages, "page_tokens": PAGE_TOKENS}


@dataclass(frozen=True)
class Budget:
    """How much memory there is and how many pages are wanted.

    Attributes:
        total_bytes: all the device may use, headroom included.
        headroom_bytes: what stays untouched.
        wanted_pages: pages beyond which more would serve nobody.
        needed_pages: pages of one request of full context; with fewer the plan refuses.
    """

    total_bytes: int
    headroom_bytes: int
    wanted_pages: int
    needed_pages: int


PackedBytes = Callable[[Weight], int | None]
"""Upper bound of a weight's packed storage on the device, or None where it is stored as declared."""


def memory_plan(
    declared: Iterable[tuple[str, Declarations]], extent: Extent, budget: Budget, packed_bytes: PackedBytes
) -> MemoryPlan:
    """Add up what was declared; give what is left to pages.

    Args:
        declared: (part, its declarations), in allocation order.
        extent: everything but `pages`, which this function decides.

    Raises:
        PlanError: not even one request of full context fits; says how much is missing and which keys change it.
    """
    parts = list(declared)
    fixed = [*_fixed_items(parts, extent, packed_bytes), *_frame_items(extent)]
    page_bytes = [
        (part, state, PAGE_TOKENS * array_bytes(state.shape, state.dtype))
        for part, declarations in parts
        for state in declarations.state
        if isinstance(state, PagedState)
    ]
    bytes_per_page = sum(each for _, _, each in page_bytes)
    free = budget.total_bytes - budget.headroom_bytes - sum(item.bytes for item in fixed) - bytes_per_page
    pages = min(budget.wanted_pages, free // bytes_per_page) if bytes_per_page else budget.wanted_pages
    if free < 0 or pages < budget.needed_pages:
        raise PlanError(_refusal(free, bytes_per_page, budget, fixed))
    paged = [Item(state.name, "pages", pages + 1, each, part) for part, state, each in page_bytes]
    return MemoryPlan((*fixed, *paged), pages, budget.total_bytes)


def _fixed_items(parts: list[tuple[str, Declarations]], extent: Extent, packed_bytes: PackedBytes) -> Iterable[Item]:
    for part, declarations in parts:
        for weight in declarations.weights:
            yield _weight_item(part, weight, packed_bytes)
    slots = extent.slots + 1
    scratch = [("", 0)]
    for part, declarations in parts:
        for state in declarations.state:
            match state:
                case SlotState():
                    yield Item(state.name, "slot", slots, array_bytes(state.entry, state.dtype), part)
                case RingState():
                    yield Item(state.name, "ring", slots, array_bytes((state.length, *state.shape), state.dtype), part)
                case RoundBuffer():
                    yield Item(state.name, "buffer", 1, array_bytes(state.shape, state.dtype), part)
                case Scratch():
                    scratch.append((state.name, state.size_bytes))
    name, size_bytes = max(scratch, key=lambda entry: entry[1])
    if size_bytes:
        yield Item("scratch", "scratch", 1, size_bytes, name)


def _weight_item(part: str, weight: Weight, packed_bytes: PackedBytes) -> Item:
    bound = packed_bytes(weight) if weight.linear else None
    if bound is not None:
        return Item(weight.name, "opaque", 1, bound, part)
    return Item(weight.name, "weight", 1, array_bytes(weight.shape, weight.dtype), part)


def _frame_items(extent: Extent) -> Iterable[Item]:
    for name, arrays in (("arguments", argument_arrays(extent)), ("completion", completion_arrays(extent))):
        yield Item(f"frames.{name}", "frame", 2, layout(arrays)[1], "frames")


def _refusal(free: int, bytes_per_page: int, budget: Budget, fixed: list[Item]) -> str:
    missing = budget.needed_pages * bytes_per_page - free
    largest = ", ".join(
        f"{item.name} {item.bytes / 2**20:.1f} MiB" for item in sorted(fixed, key=lambda item: -item.bytes)[:3]
    )
    return (
        f"One request of full context needs {missing / 2**20:.1f} MiB more than the {budget.total_bytes / 2**20:.1f} "
        f"MiB that preparation.memory_bytes allows (headroom {budget.headroom_bytes / 2**20:.1f} MiB; largest items: "
        f"{largest}). Lower preparation.context_length or preparation.concurrency, or raise preparation.memory_bytes."
    )
