"""Broken sparse attention must be noticed: each mutant turns a named fact about the layer false."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare.ops.sparse_attention import IndexStream, Interval, cpu
from flare.ops.sparse_attention.cpu import SPARSE
from flare.plan.declarations import RingState
from tests.layers import test_sparse_attention as facts

ROUNDS = facts.ROUNDS[0]


def rounds_equal_single_steps() -> None:
    facts.test_rounds_of_changing_width_equal_single_steps_in_every_lane(ROUNDS, 2)


def use(monkeypatch: pytest.MonkeyPatch, **operators: Callable) -> None:
    """Every bench made from here on has these sparse operators."""
    made, mutant = facts.bench, replace(SPARSE, **operators)
    monkeypatch.setattr(facts, "bench", lambda *given, **named: made(*given, **{"sparse": mutant} | named))


def test_the_facts_hold_for_the_operators_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    rounds_equal_single_steps()
    facts.test_a_stale_ring_gives_nan_and_no_wrong_answer()


def test_dropping_the_tag_check_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(stream: IndexStream, slot: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        return stream.ring[slot, positions % stream.ring.shape[1]], torch.tensor(True)

    monkeypatch.setattr(cpu, "ring_keys", unchecked)
    with pytest.raises(AssertionError):
        facts.test_a_stale_ring_gives_nan_and_no_wrong_answer()


@pytest.mark.parametrize("length", [4, 8])
def test_a_ring_of_four_or_eight_is_noticed(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(RingState, "length", length)
    with pytest.raises(AssertionError):
        rounds_equal_single_steps()


def test_selecting_groups_that_later_rows_complete_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def physical(q: Tensor, pages: Tensor, interval: Interval, budget: int) -> Tensor:
        """Each row sees the groups of the lane's last row, rejected ones included."""
        seen = interval.lengths + interval.counts - 1
        rows = []
        for row in range(q.shape[1]):
            counts = (row < interval.counts).long()
            rows.append(
                SPARSE.select_positions(
                    q[:, row : row + 1], pages, replace(interval, lengths=seen, counts=counts), budget
                )
            )
        return torch.cat(rows, 1)

    use(monkeypatch, select_positions=physical)
    with pytest.raises(AssertionError):
        rounds_equal_single_steps()


def test_keeping_a_group_that_rejected_rows_completed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(raw: Tensor, stream: IndexStream, interval: Interval, cosines: Tensor, signed_sines: Tensor) -> Tensor:
        before = stream.pages.clone()
        intact = SPARSE.absorb_keys(raw, stream, interval, cosines, signed_sines)
        stream.pages.copy_(before.where(before.isfinite(), stream.pages))
        return intact

    use(monkeypatch, absorb_keys=kept)
    with pytest.raises(AssertionError):
        rounds_equal_single_steps()


def test_pooling_shifted_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(raw: Tensor, stream: IndexStream, interval: Interval, cosines: Tensor, signed_sines: Tensor) -> Tensor:
        """The rows go one position too far, so a group misses the key that closes it."""
        return SPARSE.absorb_keys(raw.roll(1, 1), stream, interval, cosines, signed_sines)

    use(monkeypatch, absorb_keys=shifted)
    with pytest.raises(AssertionError):
        rounds_equal_single_steps()


def test_a_draft_selection_without_its_tail_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def frozen(recorded: Tensor, anchors: Tensor, source: Tensor, positions: Tensor, tail: int) -> Tensor:
        selection = SPARSE.reuse_selection(recorded, anchors, source, positions, tail)
        selection[:, recorded.shape[1] :] = -1
        return selection

    use(monkeypatch, reuse_selection=frozen)
    with pytest.raises(AssertionError):
        facts.test_reused_draft_selections_see_the_first_selection_and_the_drafted_tail()


def test_a_draft_selection_of_another_request_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def anyone(recorded: Tensor, anchors: Tensor, source: Tensor, positions: Tensor, tail: int) -> Tensor:
        return SPARSE.reuse_selection(recorded, anchors, source.abs() * 0, positions, tail)

    use(monkeypatch, reuse_selection=anyone)
    with pytest.raises(AssertionError):
        facts.test_a_draft_selection_is_of_one_request_and_one_reach()
