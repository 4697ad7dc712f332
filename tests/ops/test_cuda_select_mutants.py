"""Broken kernels of CUDA selection must be noticed: each mutant turns a named fact false.

Mutants replace functions that kernels call, which only the interpreter looks up anew.
"""

from collections.abc import Callable

import pytest

from tests.ops import test_cuda_select as facts
from tests.ops.triton_device import DEVICE

triton = pytest.importorskip("triton")
tl = triton.language
cuda_select = facts.cuda_select
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda", reason="compiled kernels keep the functions they were compiled with"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]


@triton.jit
def last_equals(bits, threshold, equals):
    """Among equals the higher groups come first."""
    above, equal = (bits > threshold).to(tl.int32), (bits == threshold).to(tl.int32)
    passed = tl.maximum(tl.sum(equal, 0) - equals, 0)
    late = equal & (tl.cumsum(equal, 0) > passed).to(tl.int32)
    return tl.cumsum(above + late, 0) - 1, (above + late) > 0


@triton.jit
def coarse_bits(scores_ptr, place, real):
    """Scores that differ in their last bits count as equal."""
    bits = tl.load(scores_ptr + place, mask=real, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFF00
    return tl.where(real, bits, -1)


@triton.jit
def first_spans(peaks_ptr, best_ptr, spans, kept, wanted, PEAKED: tl.constexpr):
    """The first spans instead of the best."""
    return wanted, 0, 0x7F800000


@triton.jit
def unsorted_spans(peaks_ptr, best_ptr, spans, kept, wanted, PEAKED: tl.constexpr):
    """The best spans, the last of them first."""
    span, least, most = best_spans(peaks_ptr, best_ptr, spans, kept, wanted, PEAKED)
    turned = tl.load(best_ptr + kept - 1 - wanted, mask=(wanted < kept) & (spans > kept), other=0)
    return tl.where(spans > kept, turned, span), least, most


@triton.jit
def foreign_peaks(scores, group, visible, ROWS: tl.constexpr, GROUPS: tl.constexpr, SPAN: tl.constexpr):
    """Peaks with what only later rows see."""
    return tl.max(tl.reshape(scores, (ROWS, GROUPS // SPAN, SPAN)), 2)


best_spans = cuda_select._best_spans


def borders() -> None:
    facts.check_curve("over borders")


def neighbours() -> None:
    facts.check_curve("neighbours")


def many_values() -> None:
    facts.check_curve("many values")


MUTANTS = {
    "last equals": ("_ranks", last_equals, borders, 1),
    "last equal spans": ("_ranks", last_equals, borders, 2),
    "coarse bits": ("_bits", coarse_bits, neighbours, 1),
    "first spans": ("_best_spans", first_spans, many_values, 2),
    "unsorted spans": ("_best_spans", unsorted_spans, many_values, 2),
    "peaks of later rows": ("_peaks", foreign_peaks, facts.check_later_groups, 2),
}


@pytest.mark.parametrize(("name", "mutant", "fact", "span"), MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_noticed(
    name: str, mutant: Callable, fact: Callable[[], None], span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    fact()
    monkeypatch.setattr(cuda_select, name, mutant)
    with pytest.raises(AssertionError):
        fact()
