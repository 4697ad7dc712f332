"""Planned bytes are allocated bytes, item by item, for every kind of declaration."""

from dataclasses import replace

import pytest
import torch

from flare.contract.frames import argument_arrays, completion_arrays, host_arguments, host_completion
from flare.contract.manifest import Extent
from flare.errors import PlanError
from flare.plan.declarations import Declarations, PagedState, RingState, RoundBuffer, Scratch, SlotState, Weight
from flare.plan.memory import Budget, memory_plan
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
                RingState("raw", (7,), "bfloat16", group=4),
                Scratch("small", 10),
            ),
        ),
    ),
    ("rounds", Declarations(state=(RoundBuffer("logits", (16, 100), "float32"), Scratch("large", 1000)))),
)


def budget(total_bytes: int = 10**9, wanted: int = 8) -> Budget:
    return Budget(total_bytes, headroom_bytes=1000, wanted_pages=wanted, needed_pages=4)


def planned(budget: Budget):
    return memory_plan(DECLARED, EXTENT, budget, lambda weight: 5000)


def test_every_state_item_equals_what_the_arena_holds():
    memory = planned(budget())
    arena = Arena([part for _, part in DECLARED], replace(EXTENT, pages=memory.pages), torch.device("cpu"))
    items = {item.name: item for item in memory.items if item.kind in ("slot", "ring", "pages", "buffer", "scratch")}
    assert set(items) == set(arena.tensors)
    for name, item in items.items():
        assert item.bytes == arena.bytes_of(name), name


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
    page = 64 * (24 + 48)
    assert 10**9 - 1000 - roomy.total_bytes < page


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
