"""Where a core lives: what auto takes, and what is said where there is no CUDA device."""

import pytest
import torch

from flare import ops
from flare.config.compose import compose
from flare.device.memory import available_bytes, cuda_usable
from flare.errors import PlanError
from flare.plan.packing import packed_linear_bytes


def test_auto_takes_cuda_where_there_is_one():
    config = compose("smollm2")
    assert config.device(cuda_available=True) == "cuda"
    assert config.device(cuda_available=False) == "cpu"
    assert config.dtype() == "bfloat16"
    assert config.prefill_capacities("cuda") == (512, 4096)


@pytest.mark.parametrize("override", ["preparation.dtype=float64", "preparation.linear_format=int4"])
def test_auto_stays_on_a_cpu_for_what_only_a_cpu_holds(override):
    assert compose("smollm2", [override]).device(cuda_available=True) == "cpu"


def test_a_plan_for_another_machine_needs_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cuda_usable()
    with pytest.raises(PlanError, match=r"no CUDA device here; set preparation\.device=cpu, or plan .*memory_bytes"):
        available_bytes("cuda")


def test_cuda_without_triton_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ops, "CUDA_PACKAGES", ("triton_that_nobody_has",))
    with pytest.raises(PlanError, match=r"needs triton_that_nobody_has: python -m pip install 'flare\[cuda\]'"):
        ops.load("cuda")


def test_cuda_keeps_linears_as_they_are_declared():
    assert packed_linear_bytes(100, 70, "bfloat16", "dense", "cuda") is None
    with pytest.raises(PlanError, match="CUDA takes dense"):
        packed_linear_bytes(128, 64, "bfloat16", "int4", "cuda")
