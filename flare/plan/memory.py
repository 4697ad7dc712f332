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
    prefix_rows,
)

ItemKind = Literal["weight", "slot", "ring", "snapshot", "pages", "buffer", "scratch", "frame", "graphs", "opaque"]


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
        snapshots: rows that keep a prefix's state; snapshot_bytes: of one, 0 where no prefix is cached.
        budget: what there was; missing_bytes: by how much that is too little, 0 where it all fits.
    """

    items: tuple[Item, ...]
    pages: int
    snapshots: int
    snapshot_bytes: int
    budget: "Budget"
    missing_bytes: int

    @property
    def total_bytes(self) -> int:
        """All items, opaque bounds included."""
        return sum(item.bytes for item in self.items)

    def check(self) -> None:
        """Refuse what does not fit.

        Raises:
            PlanError: how much is missing, the largest items, and the keys that change it; or that the bytes for
                snapshots hold none.
        """
        if self.missing_bytes:
            raise PlanError(_refusal(self))
        cache = self.budget.cache
        if cache is not None and cache.snapshot_bytes and cache.snapshot_bytes < self.snapshot_bytes:
            raise PlanError(
                f"preparation.snapshot_bytes={cache.snapshot_bytes} holds no snapshot: one takes {self.snapshot_bytes} "
                "bytes. Allow that much, auto, or 0 to keep none."
            )

    def to_json(self) -> dict[str, Any]:
        """The document written as `plan.json`."""
        items = [{**asdict(item), "bytes": item.bytes} for item in self.items]
        return {
            "items": items,
            "total_bytes": self.total_bytes,
            "pages": self.pages,
            "page_tokens": PAGE_TOKENS,
            "snapshots": self.snapshots,
        }


MOST_SNAPSHOTS = 256
"""Prefixes worth keeping exactly, whatever they take: with the pages beside them, more would not be found again."""

SNAPSHOT_SHARE = 4
"""Without bytes of their own, snapshots take a quarter of what one request of full context leaves."""


@dataclass(frozen=True)
class CacheBudget:
    """What cached prefixes may take of the memory that one request of full context leaves.

    Attributes:
        wanted_pages: pages beyond those of all live requests.
        snapshot_bytes: most bytes of snapshots; None is one part in `SNAPSHOT_SHARE`. Never more than `MOST_SNAPSHOTS`.
    """

    wanted_pages: int
    snapshot_bytes: int | None


@dataclass(frozen=True)
class Budget:
    """How much memory there is and how many pages are wanted.

    Attributes:
        total_bytes: all the device may use, headroom included.
        headroom_bytes: what stays untouched.
        wanted_pages: pages of all live requests at full context; more would serve none of them.
        needed_pages: pages of one request of full context; with fewer the plan refuses.
        cache: of cached prefixes; None where none are kept.
        graph_bytes: what captured graphs and their libraries hold, by a trial capture; 0 before one, and on a CPU.
    """

    total_bytes: int
    headroom_bytes: int
    wanted_pages: int
    needed_pages: int
    cache: CacheBudget | None = None
    graph_bytes: int = 0


PackedBytes = Callable[[Weight], int | None]
"""Upper bound of a weight's packed storage on the device, or None where it is stored as declared."""


def memory_plan(
    declared: Iterable[tuple[str, Declarations]], extent: Extent, budget: Budget, packed_bytes: PackedBytes
) -> MemoryPlan:
    """Add up what was declared and share out what is left.

    The pages of one request of full context come first, then snapshots, then all other pages: those of further live
    requests, and with a prefix cache those of prefixes that nobody runs.

    Args:
        declared: (part, its declarations), in allocation order.
        extent: everything but `pages` and `snapshots`, which this function decides.
    """
    parts = list(declared)
    fixed = [*_fixed_items(parts, extent, packed_bytes), *_frame_items(extent)]
    if budget.graph_bytes:
        fixed.append(Item("graphs", "graphs", 1, budget.graph_bytes, "trial capture"))
    entries = [
        (part, state, PAGE_TOKENS * array_bytes(state.shape, state.dtype))
        for part, declarations in parts
        for state in declarations.state
        if isinstance(state, PagedState)
    ]
    page_bytes = sum(each for _, _, each in entries)
    rows = [
        (part, state, array_bytes(state.entry, state.dtype))
        for part, declarations in parts
        for state in prefix_rows(declarations.state)
    ]
    row_bytes = sum(each for _, _, each in rows)
    free = budget.total_bytes - budget.headroom_bytes - sum(item.bytes for item in fixed) - page_bytes
    pages, snapshots = _share_out(free, page_bytes, row_bytes, budget)
    kept = [Item(state.name, "snapshot", snapshots, each, part) for part, state, each in rows if snapshots]
    paged = [Item(state.name, "pages", pages + 1, each, part) for part, state, each in entries]
    return MemoryPlan(
        items=(*fixed, *kept, *paged),
        pages=pages,
        snapshots=snapshots,
        snapshot_bytes=row_bytes if budget.cache is not None else 0,
        budget=budget,
        missing_bytes=max(budget.needed_pages * page_bytes - free, 0),
    )


def _share_out(free_bytes: int, page_bytes: int, row_bytes: int, budget: Budget) -> tuple[int, int]:
    """Pages and snapshots for the bytes that everything of a fixed size leaves."""
    cache, wanted, snapshots = budget.cache, budget.wanted_pages, 0
    if cache is not None:
        wanted += cache.wanted_pages
        spare = max(free_bytes - budget.needed_pages * page_bytes, 0)
        allowed = spare // SNAPSHOT_SHARE if cache.snapshot_bytes is None else min(cache.snapshot_bytes, spare)
        snapshots = min(MOST_SNAPSHOTS, allowed // row_bytes) if row_bytes else 0
    affordable = (free_bytes - snapshots * row_bytes) // page_bytes if page_bytes else wanted
    return max(min(wanted, affordable), budget.needed_pages), snapshots


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
                    yield Item(state.name, "ring", slots, array_bytes(state.entry, state.dtype), part)
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
        "preparation.context_length, serving.concurrency or preparation.headroom_bytes, or raise "
        "preparation.memory_bytes."
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
