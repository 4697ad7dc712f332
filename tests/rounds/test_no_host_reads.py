"""Rounds never read a tensor on the host and never allocate a vocabulary-sized buffer: a CUDA graph could hold them."""

from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from flare import ops
from tests.recipes.qwen38.tiny import tiny_bench
from tests.rounds.harness import GREEDY, Bench, bench, random_weights

WEIGHTS = random_weights()
HOST_READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique")


class NoHostReads(TorchDispatchMode):
    """Raises where a round would wait for the device, or allocate what a declared buffer holds."""

    def __init__(self, widths: Collection[int], declared: set[int]) -> None:
        """Args: widths: of a row of logits or laws; declared: storage addresses that may hold such rows."""
        super().__init__()
        self.widths, self.declared = widths, declared

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        name = func._schema.name
        if name.startswith(HOST_READS):
            raise AssertionError(f"host read: {name}")
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and self.holds_rows_of_logits(result):
            raise AssertionError(f"allocates {tuple(result.shape)}: {name}")
        return result

    def holds_rows_of_logits(self, result: torch.Tensor) -> bool:
        wide = result.ndim > 1 and result.shape[-1] in self.widths and result.numel() >= 2 * min(self.widths)
        return wide and result.untyped_storage().data_ptr() not in self.declared


def exempted(operators: Any) -> Any:
    """An operator set whose CPU implementations may read their tensors: there the host is the device."""
    members = {field.name: getattr(operators, field.name) for field in fields(operators)}
    return replace(
        operators,
        **{name: exempted(member) if is_dataclass(member) else exempt(member) for name, member in members.items()},
    )


def exempt(operator: Callable) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return operator(*args, **kwargs)

    return call


def guarded(core: Bench) -> Bench:
    """Watch every program from here on."""
    declared = {tensor.untyped_storage().data_ptr() for tensor in core.state.values()}
    vocab, heads = core.extent.vocab, 96
    # The tiny model's six heads of sixteen are as wide as its vocabulary; its laws are one wider.
    core.guard = NoHostReads({vocab, vocab + 1} - {heads}, declared)
    return core


def dense() -> Bench:
    return bench(WEIGHTS, operators=exempted(ops.load("cpu")))


def qwen38() -> Bench:
    return tiny_bench(operators=exempted(ops.load("cpu")))


@pytest.mark.parametrize("build", [dense, qwen38])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_a_speculative_round_reads_nothing(build, width):
    core = build()
    core.start(0, [1, 2, 3])
    core.start(1, [4, 5])
    guarded(core).round([0, 1], width, {0: [1, 2, 3]}, batch=4)


@pytest.mark.parametrize("build", [dense, qwen38])
def test_prefill_resume_init_and_decode_read_nothing(build):
    core = guarded(build())
    core.admit(0, [1, 2, 3], replace(GREEDY, logit_bias=((3, 1.0),), repetition=1.2))
    core.chunk(0, [1, 2], 16, sample=False)
    core.chunk(0, [3], 16, sample=True)
    core.decode([0], batch=2)


@pytest.mark.parametrize("build", [dense, qwen38])
def test_snapshots_restores_crossings_and_scored_chunks_read_nothing(build):
    core = guarded(build())
    row = core.extent.snapshot_row(0)
    core.boundaries = {0: row}
    core.admit(0, [1, 2] * 31, GREEDY)
    core.scored_chunk(0, [1, 2] * 30, 1, 64)
    core.scored_chunk(0, [1, 2], None, 64)
    core.decode([0], batch=2)
    core.round([0], 8, {0: [1, 2, 3]}, batch=2)
    core.keep(0, row)
    core.admit(1, [1, 2] * 31, GREEDY)
    core.restore(1, row, 62, copy=(0, 4), sample=True)


def test_the_guard_catches_a_host_read_and_a_large_allocation():
    mode = NoHostReads({10}, declared=set())
    with pytest.raises(AssertionError, match="host read"), mode:
        torch.ones(3).sum().item()
    with pytest.raises(AssertionError, match="allocates"), mode:
        torch.ones(2, 10)
