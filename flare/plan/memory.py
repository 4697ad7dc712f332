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
    """Every item with its bytes.

    Attributes:
        pages: what the budget left for paged state, the null page apart; at least one request of full context.
        budget: what there was; missing_bytes: by how much that is too little, 0 where it all fits.
    """

    items: tuple[Item, ...]
    pages: int
    budget: "Budget"
    missing_bytes: int

    @property
    def total_bytes(self) -> int:
        """All items, opaque bounds included."""
        return sum(item.bytes for item in self.items)

    def check(self) -> None:
        """Refuse what does not fit.

        Raises:
            PlanError: how much is missing, the largest items, and the keys that change it.
        """
        if self.missing_bytes:
            raise PlanError(_refusal(self))

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
    """Add up what was declared; give what is left to pages, and no less than one request of full context needs.

    Args:
        declared: (part, its declarations), in allocation order.
        extent: everything but `pages`, which this function decides.
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
    affordable = free // bytes_per_page if bytes_per_page else budget.wanted_pages
    pages = max(min(budget.wanted_pages, affordable), budget.needed_pages)
    paged = [Item(state.name, "pages", pages + 1, each, part) for part, state, each in page_bytes]
    missing_bytes = max(budget.needed_pages * bytes_per_page - free, 0)
    return MemoryPlan((*fixed, *paged), pages, budget, missing_bytes)


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


def _refusal(plan: MemoryPlan) -> str:
    budget, kept = plan.budget, [item for item in plan.items if item.kind != "pages"]
    largest = ", ".join(f"{item.name} {_mib(item.bytes)}" for item in sorted(kept, key=lambda item: -item.bytes)[:3])
    return (
        f"One request of full context needs {_mib(plan.missing_bytes)} more than the {_mib(budget.total_bytes)} that "
        f"preparation.memory_bytes allows (headroom {_mib(budget.headroom_bytes)}; largest items: {largest}). Lower "
        "preparation.context_length, preparation.concurrency or preparation.headroom_bytes, or raise "
        "preparation.memory_bytes."
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
