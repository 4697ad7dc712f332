"""Planned bytes are allocated bytes, item by item, for every kind of declaration."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from flare.contract.frames import argument_arrays, completion_arrays, host_arguments, host_completion
from flare.contract.manifest import Extent
from flare.errors import PlanError
from flare.plan.declarations import Declarations, PagedState, RingState, RoundBuffer, Scratch, SlotState, Weight
from flare.plan.memory import MOST_SNAPSHOTS, Budget, CacheBudget, memory_plan
from flare.state.arena import Arena

EXTENT = Extent(lanes=2, slots=2, pages=0, pages_per_request=4, width=8, chunk=64, context=256, vocab=100)
DECLARED = (
    (
        "target",
        Declarations(
            weights=(Weight("norm", (24,), "float32"), Weight("big", (40, 24), "bfloat16", linear=True)),
            state=(
                PagedState("keys", (2, 6), "bfloat16", heads_outermost=True),
                PagedState("values", (2, 6), "float32"),
                SlotState("recurrent", (3, 5), "float32", columns=8),
                SlotState("tail", (5,), "float64"),
                SlotState("policy", (11,), "int64", snapshot=False),
                RingState("raw", (7,), "bfloat16", group=4),
                Scratch("small", 10),
            ),
        ),
    ),
    ("rounds", Declarations(state=(RoundBuffer("logits", (16, 100), "float32"), Scratch("large", 1000)))),
)


PAGE = 64 * (24 + 48)
ROW = 3 * 5 * 8 * 4 + 5 * 8 + 12 * 7 * 2  # recurrent columns, tail, ring: what one snapshot takes


def budget(total_bytes: int = 10**9, wanted: int = 8, cache: CacheBudget | None = None) -> Budget:
    return Budget(total_bytes, headroom_bytes=1000, wanted_pages=wanted, needed_pages=4, cache=cache)


def budget_beside(spare_bytes: int, snapshot_bytes: int | None, wanted_pages: int = 8) -> Budget:
    """A budget of which the four pages of one full context leave exactly so many bytes."""
    least = planned(budget(wanted=4)).total_bytes
    return budget(least + 1000 + spare_bytes, cache=CacheBudget(wanted_pages, snapshot_bytes))


def planned(budget: Budget):
    return memory_plan(DECLARED, EXTENT, budget, lambda weight: 5000)


@pytest.mark.parametrize("cache", [None, CacheBudget(5, 3 * ROW), CacheBudget(5, 0)])
def test_the_items_of_every_state_equal_what_the_arena_holds(cache):
    memory = planned(budget(cache=cache))
    extent = replace(EXTENT, pages=memory.pages, snapshots=memory.snapshots)
    arena = Arena([part for _, part in DECLARED], extent, torch.device("cpu"))
    items = defaultdict(list)
    for item in memory.items:
        if item.kind in ("slot", "ring", "snapshot", "pages", "buffer", "scratch"):
            items[item.name].append(item)
    assert set(items) == set(arena.tensors)
    for name, parts in items.items():
        assert sum(item.bytes for item in parts) == arena.bytes_of(name), name
    kept = {item.name: item.count for item in memory.items if item.kind == "snapshot"}
    assert memory.snapshots == (3 if cache == CacheBudget(5, 3 * ROW) else 0)
    assert kept == (dict.fromkeys(("recurrent", "tail", "raw"), 3) if memory.snapshots else {})
    assert arena["recurrent"].shape[0] == arena["raw"].shape[0] == EXTENT.slots + 1 + memory.snapshots
    assert arena["policy"].shape[0] == EXTENT.slots + 1
    assert memory.pages == 8 + (5 if cache else 0)


@pytest.mark.parametrize(
    ("spare", "wished", "snapshots", "pages"),
    [
        (4 * PAGE + 4 * ROW, 3 * ROW, 3, 8),  # the bytes that were wished, and all live pages
        (4 * PAGE + 4 * ROW, 3 * ROW - 1, 2, 8),
        (2 * ROW, 30 * ROW, 2, 4),  # no more than one full context leaves
        (ROW - 1, 30 * ROW, 0, 4),
        (4 * PAGE, None, 6, 7),  # auto: a quarter, and pages from the rest
        (4 * ROW - 1, None, 0, 4),
        (3 * PAGE, 0, 0, 7),
        (7 * PAGE, 0, 0, 11),  # four more for live requests, then cached ones
        (10**8, None, MOST_SNAPSHOTS, 16),  # as many as are worth it
        (10**8, 10**8, MOST_SNAPSHOTS, 16),
    ],
)
def test_snapshots_take_their_share_of_what_one_full_context_leaves(spare, wished, snapshots, pages):
    memory = planned(budget_beside(spare, wished))
    memory.check()
    assert (memory.snapshots, memory.pages, memory.snapshot_bytes) == (snapshots, pages, ROW)
    assert memory.total_bytes <= memory.budget.total_bytes - 1000


def test_without_room_for_one_full_context_nothing_is_cached():
    memory = planned(budget_beside(-1, None))
    assert (memory.snapshots, memory.pages, memory.missing_bytes) == (0, 4, 1)


def test_bytes_that_hold_no_snapshot_are_refused():
    planned(budget(cache=CacheBudget(8, ROW))).check()
    with pytest.raises(PlanError, match=rf"snapshot_bytes={ROW - 1} holds no snapshot: one takes {ROW} bytes"):
        planned(budget(cache=CacheBudget(8, ROW - 1))).check()


def test_frames_are_planned_as_they_are_allocated():
    memory = {item.name: item for item in planned(budget()).items}
    extent = replace(EXTENT, pages=8)
    for name, arrays, host in (
        ("frames.arguments", argument_arrays(extent), host_arguments(extent)),
        ("frames.completion", completion_arrays(extent), host_completion(extent)),
    ):
        held = next(iter(vars(host).values())).base
        while held.base is not None:
            held = held.base
        assert memory[name].bytes == 2 * held.nbytes
        assert memory[name].count == 2
        assert list(arrays) == list(vars(host))


def test_rings_hold_an_open_group_before_the_widest_round():
    assert RingState("raw", (), "int32", group=4).length == 12


def test_packed_weights_are_opaque_and_stand_apart():
    kinds = {item.name: item.kind for item in planned(budget()).items}
    assert kinds["big"] == "opaque"
    assert kinds["norm"] == "weight"


def test_pages_take_what_is_left_up_to_what_is_wanted():
    assert planned(budget(wanted=8)).pages == 8
    planned(budget(wanted=8)).check()
    roomy = planned(budget(wanted=10**6))
    assert roomy.total_bytes <= 10**9 - 1000
    assert 10**9 - 1000 - roomy.total_bytes < PAGE


def test_one_request_that_does_not_fit_is_refused_with_the_keys_that_change_it():
    with pytest.raises(
        PlanError, match=r"preparation\.context_length.*preparation\.headroom_bytes.*preparation\.memory_bytes"
    ):
        planned(budget(total_bytes=30_000)).check()


def test_items_add_up():
    memory = planned(budget())
    document = memory.to_json()
    assert document["total_bytes"] == sum(item["count"] * item["bytes_each"] for item in document["items"])
    assert all(item["bytes"] == item["count"] * item["bytes_each"] for item in document["items"])
