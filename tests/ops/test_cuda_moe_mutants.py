"""Broken kernels of CUDA experts must be noticed: each mutant is a module of kernels with one expression replaced."""

import linecache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.ops import test_cuda_moe as facts
from tests.ops.triton_device import draw, error

cuda = facts.cuda


def mutate(monkeypatch: pytest.MonkeyPatch, module: str, old: str, new: str) -> None:
    """A module of kernels with one expression replaced, compiled anew."""
    path = Path(getattr(cuda, module).__file__)
    source = path.read_text()
    assert old in source
    mutant = ModuleType("mutant")
    mutant.__file__ = str(path)
    linecache_name = f"<mutant {new}>"
    linecache.cache[linecache_name] = (len(source), None, source.replace(old, new).splitlines(True), linecache_name)
    exec(compile(source.replace(old, new), linecache_name, "exec"), vars(mutant))
    monkeypatch.setattr(cuda, module, mutant)


def test_a_mutant_that_ranks_pairs_backwards_sorts_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, experts, seats = facts.SORTED["one expert takes all"]
    mutate(monkeypatch, "cuda_kernels", "beside[None, :] < entry[:, None]", "beside[None, :] > entry[:, None]")
    assert not torch.equal(cuda._sorted(ids, experts, seats).order.long(), ids.flatten().sort(stable=True).indices)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("module", "taken", "old", "new"),
    [
        ("cuda_few", "few", "while first < stop", "while first < SEATS"),
        ("cuda_few", "few", "(0, 2, 1, 3)", "(0, 1, 2, 3)"),
        ("cuda_few", "few", "(2, 1, 0)), (rows, 8, 1)", "(2, 0, 1)), (rows, 8, 1)"),
        ("cuda_few", "few", "place + 1, 0), 1)", "place, 0), 1)"),
        ("cuda_few", "few", "first + tl.arange(0, SEATS)", "first + 1 + tl.arange(0, SEATS)"),
        ("cuda_few", "seated", "tl.minimum(entry, stop - 1)", "tl.minimum(entry + 1, stop - 1)"),
        ("cuda_few", "seated", "taken = entry < stop", "taken = entry < stop - 1"),
        ("cuda_many", "tiles of 16", "(0, 2, 3, 1, 4)", "(0, 1, 2, 3, 4)"),
        ("cuda_many", "tiles of 16", "lane * 16 + within // 16 * 4", "lane * 16 + within // 16 * 2"),
        ("cuda_many", "tiles of 16", "column = element_at(position)", "column = position"),
        ("cuda_many", "tiles of 16", "taken = entry < stop", "taken = entry < stop - 1"),
        ("cuda_many", "tiles of 16", "at + TILE // 2", "at + TILE // 4"),
        ("cuda_many", "tiles of 16", "pair // CHOICES", "pair // (CHOICES + 1)"),
        ("cuda_kernels", "tiles of 16", "start[None, :] + nth * SEATS", "start[None, :]"),
        ("cuda_kernels", "seated", "nth < needed[None, :]", "nth < needed[None, :] - 1"),
    ],
)
def test_a_mutant_differs(module: str, taken: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # More rows than seats; more channels than one place of an arrangement holds in order.
    rows, ffn = (9, 16) if module == "cuda_few" else (19, 80)
    weights = facts.stored(facts.matrices(facts.EXPERTS, 144, ffn), packed=True)
    x, routing = draw(rows, 144), facts.crowded(rows, facts.EXPERTS, 3)
    wanted = facts.expected(x, routing, weights)
    monkeypatch.setattr(cuda, "_FEW_DTYPES", (torch.float32,))
    facts.take(monkeypatch, taken)
    assert error(cuda.experts(x, routing, weights), wanted) < 1e-6
    mutate(monkeypatch, module, old, new)
    assert not error(cuda.experts(x, routing, weights), wanted) < 1e-2
