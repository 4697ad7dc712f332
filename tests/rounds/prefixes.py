"""A prefix taken out of one slot and brought back into another, and its state read by declaration."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from flare.contract.manifest import PAGE_TOKENS
from flare.contract.policies import SamplingPolicy
from flare.plan.declarations import PagedState, RingState, SlotState, prefix_rows
from tests.recipes.qwen38.tiny import tiny_bench
from tests.rounds.harness import GREEDY, Bench, bench, random_weights

SOURCE, READER = 0, 2
DENSE_WEIGHTS = random_weights(seed=12)


def dense() -> Bench:
    return bench(DENSE_WEIGHTS, dtype="float32")


def qwen38() -> Bench:
    return tiny_bench("float32")


CORES: dict[str, Callable[[], Bench]] = {"dense": dense, "qwen38": qwen38}


def bits(tensor: Tensor) -> Tensor:
    """Every byte, so that equality holds for NaN too."""
    return tensor.contiguous().view(torch.uint8)


def rows_of(core: Bench, row: int) -> dict[str, Tensor]:
    """All bytes a snapshot of this row copies."""
    state = [item for part in core.declared.values() for item in part.state]
    return {item.name: bits(core.state[item.name][row][None]).clone() for item in prefix_rows(state)}


def visible(core: Bench, row: int, length: int, pages: Sequence[int]) -> dict[str, Tensor]:
    """What a continuation after `length` tokens may read, in a slot or snapshot row and its pages.

    A drafter that absorbs is a pair behind; rings count from the open group on, group keys up to it. `length` is at
    least the longest history, so all of it is visible.
    """
    found = {}
    for part, declared in core.declared.items():
        held = length - 1 if part == "drafter" else length
        for item in declared.state:
            tensor = core.state.get(item.name)
            if isinstance(item, SlotState) and item.snapshot:
                found[item.name] = tensor[row].clone()
            elif isinstance(item, RingState):
                found[item.name] = tensor[row, [place % item.length for place in range(held // 4 * 4, held)]].clone()
            elif isinstance(item, PagedState):
                whole = held // 4 * 4 if item.name.endswith("index_keys") else held
                found[item.name] = tensor[list(pages)].flatten(0, 1)[:whole].clone()
    return found


def request_columns(core: Bench, slot: int) -> dict[str, Tensor]:
    """The request's row of the table: policy, counters, tail and spent events."""
    return {name: tensor[slot].clone() for name, tensor in core.state.items() if name.startswith("requests.")}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not tensor.dtype.is_floating_point or tensor.isfinite().all(), name
        assert torch.equal(found[name], tensor), name


def bring_back(
    core: Bench, row: int, tokens: Sequence[int], length: int, policy: SamplingPolicy = GREEDY, *, sample: bool = False
) -> np.ndarray:
    """Admit `tokens` into the reader's slot and restore its first `length`, which the source's pages hold.

    Whole pages are shared. One that also holds what follows the prefix is copied: the last one where it is not full,
    and where the drafter is a pair behind.
    """
    whole, copy = divmod(length, PAGE_TOKENS)[0], None
    absorbs = core.model.drafter is not None and core.model.drafter.absorbs
    shared = whole - (absorbs and length % PAGE_TOKENS == 0)
    own = list(core.pages(READER))
    if length % PAGE_TOKENS or absorbs:
        copy = (core.pages(SOURCE)[shared], own[shared])
    core.tables[READER] = [*core.pages(SOURCE)[:shared], *own[shared:]]
    core.admit(READER, tokens, policy)
    return core.restore(READER, row, length, copy=copy, sample=sample)


def dirty(core: Bench, slot: int) -> None:
    """Whatever the slot's last request left: NaN, and numbers that are no id, position or count."""
    for part in core.declared.values():
        for item in prefix_rows(part.state):
            tensor = core.state[item.name]
            tensor[slot] = float("nan") if tensor.dtype.is_floating_point else -7
