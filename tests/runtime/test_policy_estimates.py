"""What the policy believes: survival of drafts and cost of rounds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.contract.frames import Source
from flare.runtime.policy import Prior, RoundCosts, Survival
from flare.runtime.policy.costs import never_falling

WIDTHS = {1: (1, 2, 4, 8), 2: (1, 4)}


def test_an_unseen_request_expects_the_prior():
    survival = Survival(Prior({Source.HISTORY: 0.5}))
    assert survival.emitted(0, Source.HISTORY, 3) == [1.0, 1.5, 1.75, 1.875]


def test_conditional_acceptance_is_counted_per_depth_whatever_the_budget():
    survival = Survival(Prior())
    for offered in (3, 7) * 60:
        survival.observe(0, Source.HISTORY, offered, 2)
    first, second, third = survival.acceptance(0, Source.HISTORY, 3)
    assert first > 0.9
    assert second > 0.9
    assert third < 0.1


def test_a_new_request_learns_from_the_population_of_its_source_only():
    survival = Survival(Prior({Source.HISTORY: 0.5, Source.CONTEXT: 0.5}))
    for request in range(30):
        survival.observe(request, Source.HISTORY, 7, 0)
        survival.forget(request)
    assert survival.acceptance(99, Source.HISTORY, 1)[0] < 0.15
    assert survival.acceptance(99, Source.CONTEXT, 1) == [0.5]


def test_a_request_outweighs_its_population_after_a_few_rounds():
    survival = Survival(Prior())
    for request in range(40):
        survival.observe(request, Source.HISTORY, 7, 7)
    for _ in range(12):
        survival.observe(99, Source.HISTORY, 7, 0)
    assert survival.acceptance(99, Source.HISTORY, 1)[0] < 0.35
    survival.forget(99)
    assert survival.acceptance(99, Source.HISTORY, 1)[0] > 0.6


def test_failing_first_drafts_lower_what_is_expected_of_deeper_ones():
    survival = Survival(Prior())
    for _ in range(50):
        survival.observe(0, Source.HISTORY, 7, 7)
    for _ in range(30):
        survival.observe(0, Source.HISTORY, 7, 0)
    failing, fresh = (survival.acceptance(request, Source.HISTORY, 7) for request in (0, 1))
    assert all(own < 0.5 * usual for own, usual in zip(failing, fresh, strict=True))


def test_lanes_without_drafts_teach_nothing():
    survival = Survival(Prior({Source.HISTORY: 0.5}))
    survival.observe(0, Source.LEARNED, 0, 0)
    assert survival.emitted(0, Source.LEARNED, 0) == [1.0]
    with pytest.raises(ValueError, match="4 of 3"):
        survival.observe(0, Source.HISTORY, 3, 4)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=40))
def test_estimates_stay_probabilities(rounds):
    survival = Survival(Prior())
    for offered, accepted in rounds:
        survival.observe(0, Source.HISTORY, offered, min(offered, accepted))
    assert all(0 < estimate < 1 for estimate in survival.acceptance(0, Source.HISTORY, 7))


def test_costs_before_any_measurement_grow_gently_with_rows():
    row = RoundCosts(WIDTHS).of_batch(1)
    assert list(row) == [1, 2, 4, 8]
    assert row[1] < row[2] < row[8] < 1.3 * row[1]


def test_unmeasured_shapes_are_scaled_by_measured_ones():
    costs = RoundCosts(WIDTHS)
    costs.seed((1, 1), 0.5)
    assert 0.5 < costs.of_batch(1)[8] < 0.65
    assert 0.5 < costs.of_batch(2)[1] < costs.of_batch(2)[4] < 0.7


def test_a_few_slow_rounds_do_not_move_a_cost_and_a_lasting_change_does():
    costs = RoundCosts(WIDTHS)
    for seconds in (1.0, 1.0, 9.0, 1.0, 9.0, 1.0):
        costs.observe((1, 1), seconds)
    assert costs.of_batch(1)[1] == 1.0
    for _ in range(20):
        costs.observe((1, 1), 2.0)
    assert costs.of_batch(1)[1] > 1.7


def test_a_wider_round_never_costs_less():
    costs = RoundCosts(WIDTHS)
    for width, seconds in ((1, 1.0), (2, 1.4), (4, 1.2), (8, 2.0)):
        costs.observe((1, width), seconds)
    assert list(costs.of_batch(1).values()) == pytest.approx([1.0, 1.3, 1.3, 2.0])
    with pytest.raises(ValueError, match="not measured"):
        costs.observe((1, 1), 0.0)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8))
def test_pooling_keeps_the_mean_and_never_falls(values):
    pooled = never_falling(values, [1.0] * len(values))
    assert all(left <= right for left, right in pairwise(pooled))
    assert sum(pooled) == pytest.approx(sum(values))


def test_an_unmeasured_width_lies_on_the_line_between_its_measured_neighbours():
    costs = RoundCosts(WIDTHS)
    costs.seed((1, 1), 1.0)
    costs.seed((1, 8), 4.5)
    assert costs.of_batch(1)[4] == pytest.approx(2.5)


def test_an_unmeasured_batch_is_priced_by_the_rows_of_a_measured_one():
    costs = RoundCosts(WIDTHS)
    costs.seed((1, 1), 1.1)
    costs.seed((1, 8), 1.8)
    assert costs.of_batch(2)[4] == pytest.approx(1.0 + 0.1 * 8)


def test_a_width_narrower_than_all_measured_ones_is_cheaper_than_they_are():
    costs = RoundCosts(WIDTHS)
    costs.seed((1, 4), 4.0)
    costs.seed((1, 8), 8.0)
    assert costs.of_batch(1)[2] == pytest.approx(2.0)
