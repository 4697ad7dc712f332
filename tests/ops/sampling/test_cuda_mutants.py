"""Broken thresholds: each must fail the very test that guards what it breaks. They run in Triton's interpreter only."""

# Loops and constants of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import triton
import triton.language as tl

from flare.ops.sampling import cuda_dense, cuda_law, cuda_thresholds
from flare.ops.sampling.cuda_masses import mass_of, scaled_logits
from tests.ops.sampling import test_cuda_thresholds as tests
from tests.ops.sampling.device import COMPILED

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
    pytest.mark.skipif(COMPILED, reason="a compiled kernel keeps what it was compiled from"),
]


@triton.jit
def first_chunk_alone(
    floor, order, measure, listed, n, only, row, b, rows, marks, by_mass: tl.constexpr, BINS, CHUNK
):  # fmt: skip
    return tl.sum(tl.where(order >= floor, measure, 0), 0)


@triton.jit
def all_listed(x, only, row, b, rows, marks, by_mass: tl.constexpr, BINS: tl.constexpr):
    mass = mass_of(scaled_logits(x, row, b, rows, marks))
    return mass if by_mass else tl.where(mass >= 0, 1, 0).to(tl.int64)


@triton.jit
def bits_of(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def half_of_the_nats(x, peak, temperature):
    return (x.to(tl.float64) - peak.to(tl.float64)) / temperature.to(tl.float64) / 2


@triton.jit
def all_the_total(total, top_p):
    return tl.maximum(total, 1)


@triton.jit
def limited_below_the_last(slot, rows):
    top_k = tl.load(rows.top_k + slot)
    return (top_k > 0) & (top_k + 1 < rows.vocab)


def around_the_vocabulary() -> None:
    tests.test_top_k_just_above_the_short_way_and_around_the_vocabulary(129)
    tests.test_top_k_just_above_the_short_way_and_around_the_vocabulary(2999)


def distant_bins() -> None:
    tests.test_a_heavy_bin_that_top_k_cuts_leaves_top_p_between_distant_bins(1.2)


MUTANTS: dict[str, tuple[ModuleType, str, Any, Callable[[], None]]] = {
    "only the list's first chunk counts": (
        cuda_thresholds, "_reaching", first_chunk_alone,
        tests.test_more_logits_than_a_chunk_share_the_bin_of_a_threshold,
    ),
    "top-k counts what was listed for top-p": (cuda_thresholds, "_measures", all_listed, distant_bins),
    "negative logits are ordered by their bits": (cuda_thresholds, "ordered", bits_of, around_the_vocabulary),
    "the bound on thresholds is too high": (cuda_law, "scaled_by", half_of_the_nats, around_the_vocabulary),
    "top-p is not asked for its share": (
        cuda_thresholds, "_nucleus", all_the_total, tests.test_top_p_ends_in_the_bin_that_top_k_cuts,
    ),
    "a top-k of all but one drops nothing": (cuda_dense, "is_limited", limited_below_the_last, around_the_vocabulary),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_threshold_fails_its_test(mutant: str, monkeypatch: pytest.MonkeyPatch):
    module, name, broken, guard = MUTANTS[mutant]
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(AssertionError, match="survivors differ"):
        guard()
