"""CUDA selection in one step and in two: equal to the CPU whatever scores are like and wherever they lie."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from flare.ops.sparse_attention import Interval, cpu
from tests.ops.triton_device import DEVICE

cuda_select = pytest.importorskip("flare.ops.sparse_attention.cuda_select")
# Triton's interpreter turns a loop bound that was loaded into a number in a way NumPy will not allow for ever.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

SPANS = [1, 2, 16, 64]
KEPT, GROUPS = 16, 160
BUDGET = 4 * KEPT


@dataclass
class Given:
    """Operands of a selection, on the CPU."""

    q: Tensor
    pages: Tensor
    interval: Interval

    def selected(self, budget: int = BUDGET) -> Tensor:
        """By CUDA, back on the CPU."""
        interval = self.interval
        lanes = (interval.slots, interval.lengths, interval.counts, interval.page_tables)
        made = Interval(*(each.to(DEVICE) for each in lanes))
        return cuda_select.select_positions(self.q.to(DEVICE), self.pages.to(DEVICE), made, budget).cpu()

    def expected(self, budget: int = BUDGET) -> Tensor:
        return cpu.select_positions(self.q, self.pages, self.interval, budget)


def given(scores: Tensor, lengths: list[int], counts: list[int]) -> Given:
    """Lanes whose groups score [lanes, groups], up to one factor: one channel speaks; pages lie in a random order."""
    lanes, groups = scores.shape
    order = torch.randperm(lanes * groups // 16, generator=torch.Generator().manual_seed(1))
    tables = order.view(lanes, groups // 16)
    keys = torch.zeros(lanes * groups // 16, 16, 8)
    keys[tables.flatten(), :, 3] = scores.view(-1, 16)
    q = torch.zeros(lanes, max(counts), 2, 8)
    q[:, :, 1, 3] = 1
    interval = Interval(torch.arange(lanes), torch.tensor(lengths), torch.tensor(counts), tables.int())
    return Given(q, keys.view(len(keys), 64, 2), interval)


def whole_numbers(*shape: int, high: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).float()


def ones_at(*groups: int) -> Tensor:
    scores = torch.zeros(GROUPS)
    scores[list(groups)] = 1
    return scores


CURVES = {
    "zero": torch.zeros(GROUPS),
    "equal": torch.ones(GROUPS),
    "rising": torch.arange(GROUPS).float(),
    "falling": GROUPS - torch.arange(GROUPS).float(),
    "one fewer than kept": ones_at(*range(9, 9 + 10 * (KEPT - 1), 10)),
    "exactly kept": ones_at(*range(3, 3 + 9 * KEPT, 9)),
    "one more than kept": ones_at(*range(3, 3 + 9 * (KEPT + 1), 9)),
    "one span": ones_at(*range(64, 128)),
    "over borders": ones_at(*range(56, 72), *range(120, 136)),
    "neighbours": 1 + torch.arange(GROUPS) * 2.0**-23,
    "an outlier": whole_numbers(GROUPS, high=9) + 1e30 * ones_at(0),
    # An infinite key times a silent channel would not be a number.
    "huge": whole_numbers(GROUPS, high=3) + 3e38 * ones_at(*range(30, 50)),
    "tiny": whole_numbers(GROUPS, high=7) * 1e-30,
    "few values": whole_numbers(GROUPS, high=3, seed=1),
    "many values": whole_numbers(GROUPS, high=10_000, seed=2),
}


def check_curve(curve: str) -> None:
    made = given(CURVES[curve][None], [4 * GROUPS - 3], [3])
    assert torch.equal(made.selected(), made.expected())


@pytest.mark.parametrize("span", [1, 16])
@pytest.mark.parametrize("curve", CURVES)
def test_scores_of_any_distribution_select_what_the_cpu_selects(
    curve: str, span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    check_curve(curve)


def check_lengths() -> None:
    """Lanes that see kept − 1 to kept + 1 groups, kept spans, all, nothing; with tails of every length."""
    lengths = [4 * KEPT - 4, 4 * KEPT - 1, 4 * KEPT + 2, 4 * 2 * KEPT + 1, 4 * GROUPS - 6, 0, 333]
    made = given(whole_numbers(7, GROUPS, high=6, seed=3), lengths, [5, 6, 6, 6, 6, 4, 0])
    assert torch.equal(made.selected(), made.expected())


@pytest.mark.parametrize("span", SPANS)
def test_lanes_of_different_lengths_stand_side_by_side(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    check_lengths()


def check_later_groups() -> None:
    """A group that only the last row sees has the best score, in a span with nothing else to offer."""
    scores = torch.zeros(1, GROUPS)
    scores[0, : 4 * KEPT : 4] = 1 + torch.arange(KEPT)
    scores[0, 129] = 100
    made = given(scores, [4 * 129 - 1], [6])
    assert torch.equal(made.selected(), made.expected())
    assert 4 * 129 in made.selected()[0, 4] and 4 * 129 not in made.selected()[0, 3, :BUDGET]


@pytest.mark.parametrize("span", SPANS)
def test_a_row_is_blind_to_groups_that_later_rows_complete(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    check_later_groups()


@pytest.mark.parametrize("span", [1, 16])
def test_what_scratch_holds_beforehand_does_not_matter(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    made = given(whole_numbers(3, GROUPS, high=50, seed=4), [4 * GROUPS - 9, 300, 70], [4, 4, 4])
    expected, empty = made.expected(), torch.empty
    for dirt in (torch.inf, torch.nan):

        def dirty(*shape: int, dtype: torch.dtype, device: torch.device, dirt: float = dirt) -> Tensor:
            return empty(*shape, dtype=dtype, device=device).fill_(dirt if dtype.is_floating_point else 1 << 30)

        with monkeypatch.context() as patched:
            patched.setattr(cuda_select.torch, "empty", dirty)
            first, second = made.selected(), made.selected()
        assert torch.equal(first, expected) and torch.equal(second, expected)


@pytest.mark.parametrize("span", [1, 16])
def test_a_prompt_chunk_in_slabs_selects_what_its_rows_select_alone(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    monkeypatch.setattr(cuda_select, "_SLAB_ROWS", 9)
    made = given(whole_numbers(2, GROUPS, high=20, seed=5), [4 * KEPT - 5, 500], [31, 22])
    whole = made.selected()
    assert torch.equal(whole, made.expected())
    for row in (0, 8, 21):
        alone = Given(
            made.q[:, row : row + 1],
            made.pages,
            Interval(made.interval.slots, made.interval.lengths + row, torch.tensor([1, 1]), made.interval.page_tables),
        )
        assert torch.equal(alone.selected()[:, 0], whole[:, row])


@pytest.mark.parametrize("budget", [20, 100, 252])
@pytest.mark.parametrize("span", SPANS)
def test_a_budget_need_not_be_a_power_of_two(span: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_select, "_SPANS", (span,))
    made = given(whole_numbers(2, GROUPS, high=30, seed=6), [4 * GROUPS - 2, 257], [2, 2])
    assert torch.equal(made.selected(budget), made.expected(budget))


@pytest.mark.parametrize(("groups", "two_steps"), [(4096, False), (4112, True)])
def test_tables_on_both_sides_of_the_second_step_select_the_same(groups: int, two_steps: bool) -> None:
    assert (cuda_select._span(groups, KEPT) > 1) is two_steps
    made = given(whole_numbers(1, groups, high=300, seed=7), [4 * groups - 2], [2])
    assert torch.equal(made.selected(), made.expected())


def test_a_step_looks_at_no_more_than_ranks_can_count() -> None:
    for kept in (4, 100, 512):
        for groups in (16, 512, 1024, 8192, 65_552, 1 << 18, 1 << 20):
            looked_at = cuda_select._looked_at(groups, kept, cuda_select._span(groups, kept))
            assert max(looked_at) <= cuda_select._MOST_CANDIDATES
    assert cuda_select._span(1040, 512) == 1
