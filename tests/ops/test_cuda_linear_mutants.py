"""Broken kernels with seats must be noticed: each mutant turns a named fact of CUDA linears false.

Mutants replace functions that kernels call, which only the interpreter looks up anew.
"""

from collections.abc import Callable

import pytest
import torch

from flare.ops.linear import PackedLinear
from tests.ops import test_cuda_linear as facts
from tests.ops.triton_device import DEVICE

triton = pytest.importorskip("triton")
tl = triton.language
cuda, cuda_few = facts.cuda, pytest.importorskip("flare.ops.linear.cuda_few")
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="compiled kernels keep the functions they were compiled with")
SEATS = cuda_few.SEATS


@triton.jit
def one_slice(COUNT: tl.constexpr, SLICES: tl.constexpr):
    """All warps read the first slice."""
    place = tl.arange(0, COUNT * SLICES)
    return place // (SLICES * SEATS) * SEATS + place % SEATS, place * 0


@triton.jit
def last_input_lost(row, k, start, INDEX: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr, TILES: tl.constexpr):
    """The mask ends one input early."""
    at = start + INDEX * STEP + k
    return tl.load(row[:, None] + at, mask=at < K - 1, other=0.0)


@triton.jit
def slices_as_rows(values, SLICES: tl.constexpr):
    """A read is taken apart as if its slices were its slowest part."""
    return tl.reshape(values, (SLICES, values.shape[0] // SLICES, values.shape[1]))


@triton.jit
def unshared_squares(squares, eps, K: tl.constexpr, SLICES: tl.constexpr):
    """Each row is scaled by what the first warp read of it."""
    count: tl.constexpr = squares.shape[0] // SLICES
    sums = tl.reshape(tl.sum(squares, 1), (count // SEATS, SLICES, SEATS))
    first = tl.sum(tl.where(tl.arange(0, SLICES)[None, :, None] == 0, sums, 0.0), 1)
    return tl.rsqrt(tl.reshape(first, (count,)) / K + eps)


def definition() -> None:
    facts.test_linear_equals_the_definition((100, 33), torch.float32, 1e-6)


def long_definition() -> None:
    facts.test_linear_equals_the_definition((16, 1030), torch.float32, 1e-6)


def normed_definition() -> None:
    facts.test_norm_gate_and_add_linear_equal_the_definition(torch.float32, 1e-6)


MUTANTS = {
    "one slice": ("places", one_slice, long_definition),
    "last input lost": ("read_tile", last_input_lost, definition),
    "slices as rows": ("dealt", slices_as_rows, normed_definition),
    "unshared squares": ("root_scale", unshared_squares, normed_definition),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_turns_its_fact_false(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, mutant, fact = MUTANTS[name]
    facts.cut_by(facts.Seats(16, 4, 2), monkeypatch)
    fact()
    refuted(fact, lambda: monkeypatch.setattr(cuda_few, function, mutant))


def test_a_cut_for_each_row_count_turns_equal_bits_false(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = facts.Seats.constants

    def by_rows(cut: facts.Seats, rows: int, packed: PackedLinear) -> dict[str, int]:
        return constants(cut._replace(slices=1 if rows <= 4 else 4), rows, packed)

    refuted(
        lambda: facts.check_bits((1, 4, 5, 8), torch.float32),
        lambda: monkeypatch.setattr(facts.Seats, "constants", by_rows),
    )


def refuted(fact: Callable[[], None], mutate: Callable[[], None]) -> None:
    """The fact is false after the mutation."""
    mutate()
    with pytest.raises(AssertionError):
        fact()
