"""Rounds never read a tensor on the host and never allocate a vocabulary-sized buffer: a CUDA graph could hold them."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.rounds.harness import GREEDY, SHAPE, Bench, bench, random_weights

WEIGHTS = random_weights()
HOST_READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique")


class NoHostReads(TorchDispatchMode):
    """Raises where a round would wait for the device, or allocate what a declared buffer holds."""

    def __init__(self, vocab: int, declared: set[int]) -> None:
        """Args: declared: storage addresses that may hold vocabulary-sized rows."""
        super().__init__()
        self.vocab, self.declared = vocab, declared

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        name = func._schema.name
        if name.startswith(HOST_READS):
            raise AssertionError(f"host read: {name}")
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and self.holds_rows_of_logits(result):
            raise AssertionError(f"allocates {tuple(result.shape)}: {name}")
        return result

    def holds_rows_of_logits(self, result: torch.Tensor) -> bool:
        wide = result.ndim > 1 and result.shape[-1] in (self.vocab, self.vocab + 1) and result.numel() >= 2 * self.vocab
        return wide and result.untyped_storage().data_ptr() not in self.declared


def exempt(operator: Callable) -> Callable:
    """An operator's CPU implementation may read its tensors: there the host is the device."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return operator(*args, **kwargs)

    return call


def guarded(core: Bench) -> NoHostReads:
    ops = core.model.ops
    free = replace(ops, **{f.name: exempt(getattr(ops, f.name)) for f in fields(ops) if callable(getattr(ops, f.name))})
    core.model = replace(core.model, ops=free)
    core.model.target.ops = free
    for attention, mlp in core.model.target.layers:
        attention.ops = mlp.ops = free
    tables = [tensor for name, tensor in core.state.items() if name.startswith(("requests.", "round."))]
    return NoHostReads(SHAPE.vocab, {tensor.untyped_storage().data_ptr() for tensor in tables})


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_a_speculative_round_reads_nothing(width):
    core = bench(WEIGHTS)
    core.start(0, [1, 2, 3])
    core.start(1, [4, 5])
    core.guard = guarded(core)
    core.round([0, 1], width, {0: [1, 2, 3]}, batch=4)


def test_prefill_resume_init_and_decode_read_nothing():
    core = bench(WEIGHTS)
    core.guard = guarded(core)
    core.admit(0, [1, 2, 3], replace(GREEDY, logit_bias=((3, 1.0),), repetition=1.2))
    core.chunk(0, [1, 2], 16, sample=False)
    core.chunk(0, [3], 16, sample=True)
    core.decode([0], batch=2)


def test_the_guard_catches_a_host_read_and_a_large_allocation():
    mode = NoHostReads(vocab=10, declared=set())
    with pytest.raises(AssertionError, match="host read"), mode:
        torch.ones(3).sum().item()
    with pytest.raises(AssertionError, match="allocates"), mode:
        torch.ones(2, 10)
