"""Every round program keeps the rules of a CUDA graph: proved on a CPU, for both recipes, program by program."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from flare import ops
from tests.device.capture_guard import CaptureError, CaptureGuard, Watch, exempted
from tests.recipes.qwen38.tiny import tiny_bench
from tests.rounds.harness import GREEDY, Bench, bench, random_weights

BUILDS = {"dense": lambda operators: bench(random_weights(), operators=operators)}
BUILDS["qwen38"] = lambda operators: tiny_bench(operators=operators)
BUILDS["qwen38 sharing its selection"] = lambda operators: tiny_bench(operators=operators, share_selection=True)
POLICY = replace(GREEDY, temperature=0.8, top_k=5, logit_bias=((3, 1.0),), repetition=1.2, logprobs=2)


def tensors_of(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every plain tensor a bound part holds, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type | str | bytes | int | float | torch.dtype):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, dict):
        yield from (tensor for each in value.values() for tensor in tensors_of(each, seen))
    elif isinstance(value, list | tuple | set):
        yield from (tensor for each in value for tensor in tensors_of(each, seen))
    elif hasattr(value, "__dict__"):
        yield from tensors_of(vars(value), seen)


def watched(build: str) -> Bench:
    """A core whose programs are watched from here on."""
    guards: list[CaptureGuard] = []
    core = BUILDS[build](exempted(ops.load("cpu"), guards))
    guard = CaptureGuard(tensors_of((core.model, core.frame, core.state)))
    guards.append(guard)
    core.guard = Watch(guard)
    return core


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_speculative_round_can_be_captured(build, width):
    core = watched(build)
    core.start(0, [1, 2, 3], POLICY)
    core.start(1, [4, 5])
    core.round([0, 1], width, {0: [1, 2, 3]}, batch=4)


@pytest.mark.parametrize("build", BUILDS)
def test_prompt_chunks_admission_and_ordinary_rounds_can_be_captured(build):
    core = watched(build)
    core.admit(0, [1, 2, 3], POLICY, generated=[5])
    core.chunk(0, [1, 2], 16, sample=False)
    core.chunk(0, [3], 16, sample=True)
    core.decode([0], batch=2)


@pytest.mark.parametrize("build", BUILDS)
def test_snapshots_restores_crossed_boundaries_and_scored_chunks_can_be_captured(build):
    core = watched(build)
    row = core.extent.snapshot_row(0)
    core.admit(0, [1, 2] * 40, POLICY)
    core.scored_chunk(0, [1, 2] * 30, 1, 64)
    core.scored_chunk(0, [1, 2], None, 64)
    core.keep(0, row)
    core.boundaries[0] = core.extent.snapshot_row(1)
    core.round([0], 4, {0: [1, 2, 3]}, batch=2)
    core.admit(1, [1, 2] * 40, POLICY)
    core.restore(1, row, 62, copy=(core.pages(0)[0], core.pages(1)[0]), sample=True)


DEVICE = torch.zeros(4, 3, dtype=torch.int64)
ROWS = torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        (lambda: DEVICE.index_put_((ROWS,), torch.tensor(5)), "host"),
        (lambda: DEVICE.__setitem__(ROWS, 5), "made on the host"),
        (lambda: DEVICE[DEVICE > 0], "shape that depends on values|made on the host"),
        (lambda: DEVICE.sum().item(), "reads a value"),
        (lambda: torch.arange(3), "does not say its device"),
        (lambda: torch.zeros(3, device="cpu").bernoulli_(0.5), "generator"),
    ],
    ids=["constant", "scalar put", "mask", "item", "no device", "generator"],
)
def test_the_guard_names_what_no_graph_can_hold(mistake, named):
    with Watch(CaptureGuard([DEVICE, ROWS])), pytest.raises(CaptureError, match=named):
        mistake()


def test_the_guard_lets_pass_what_a_graph_holds():
    with Watch(CaptureGuard([DEVICE, ROWS])):
        later = DEVICE[ROWS] + torch.arange(3, device=DEVICE.device)
        DEVICE[ROWS] = later.where(later > 1, 0)
        DEVICE.index_fill_(0, ROWS, 0)
        DEVICE[:, 1:] = -1
