"""Choices in simulation: synthetic acceptance and cost tables, against every fixed width on the same inputs."""

import random
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from types import SimpleNamespace
from typing import cast

import pytest

from flare.config.serving import Serving
from flare.contract.frames import Source
from flare.contract.manifest import ExecutionGraph, Extent, Manifest
from flare.errors import CapacityError, ConfigError, PlanError
from flare.runtime.catalog import Catalog
from flare.runtime.engine import policy_of
from flare.runtime.policy import (
    Adaptive,
    CohortView,
    LaneOutcome,
    LaneView,
    Policy,
    Prior,
    RoundOutcome,
    adaptive,
    fixed,
    prepared_widths,
)
from tests.runtime.scripted_device import scripted_manifest

WIDTHS = (1, 2, 4, 6, 8)
PLAIN_SECONDS = 0.01
Cost = Callable[[int], float]


def cheap(width: int) -> float:
    return PLAIN_SECONDS * (1 + 0.03 * (width - 1))


def dear(width: int) -> float:
    return PLAIN_SECONDS * (1.0 if width == 1 else 1.6 * width)


def hump(width: int) -> float:
    """Any wide round is dear, the widest hardly more than the next."""
    return PLAIN_SECONDS * (1.0 if width == 1 else 1.9 + 0.02 * width)


def seeded(cost: Cost, batch: int, share: float = 0.05, prior: Prior | None = None) -> Adaptive:
    policy = adaptive({batch: WIDTHS}, prior or Prior(), share)
    for width in WIDTHS:
        for _ in range(3):
            policy.costs.seed((batch, width), cost(width))
    return policy


def cohort(*drafts: int, batch: int | None = None, source: Source = Source.HISTORY, ceiling: int = 7) -> CohortView:
    lanes = tuple(LaneView(request, count, source, ceiling) for request, count in enumerate(drafts))
    return CohortView(batch or len(drafts), lanes)


def simulate(
    policy: Policy, cost: Cost, acceptance: Callable[[int], float], rounds: int, lanes: int = 1, seed: int = 0
) -> tuple[float, list[int]]:
    """Tokens per second and the widths chosen, every lane with seven copies; times vary by 3 %."""
    draws = random.Random(seed)
    emitted, seconds, widths = 0, 0.0, []
    for number in range(rounds):
        choice = policy.choose(cohort(*[7] * lanes))
        outcomes = []
        for request, ceiling in enumerate(choice.ceilings):
            accepted = 0
            while accepted < ceiling and draws.random() < acceptance(number):
                accepted += 1
            outcomes.append(LaneOutcome(request, Source.HISTORY, ceiling, accepted))
            emitted += 1 + accepted
        took = cost(choice.width) * draws.lognormvariate(0, 0.03)
        seconds += took
        policy.observe(RoundOutcome(lanes, choice.width, took, tuple(outcomes)))
        widths.append(choice.width)
    return emitted / seconds, widths


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("cost", [dear, hump])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5])
def test_dear_verification_keeps_plain_speed(lanes, cost, rate):
    speed, widths = simulate(seeded(cost, lanes), cost, lambda _: rate, 600, lanes)
    plain, _ = simulate(fixed({lanes: WIDTHS}, 1), cost, lambda _: rate, 600, lanes)
    assert speed >= 0.95 * plain
    assert widths.count(1) >= 0.8 * len(widths)


def test_drafts_that_can_never_pay_are_not_offered_even_if_all_are_accepted():
    speed, widths = simulate(seeded(dear, 4, share=0.0), dear, lambda _: 1.0, 50, 4)
    assert set(widths) == {1}
    assert speed == pytest.approx(4 / PLAIN_SECONDS, rel=0.02)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("rate", [0.9, 0.97])
def test_cheap_verification_of_good_drafts_reaches_the_best_fixed_width(lanes, rate):
    speeds = [
        sum(simulate(fixed({lanes: WIDTHS}, width), cheap, lambda _: rate, 800, lanes, seed)[0] for seed in range(3))
        for width in WIDTHS
    ]
    chosen = sum(simulate(seeded(cheap, lanes), cheap, lambda _: rate, 800, lanes, seed)[0] for seed in range(3))
    assert chosen >= 0.97 * max(speeds)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_collapse_of_acceptance_is_followed_within_thirty_rounds(lanes, seed):
    def falls(number: int) -> float:
        return 0.9 if number < 200 else 0.05

    _, widths = simulate(seeded(cheap, lanes), cheap, falls, 300, lanes, seed)
    assert median(widths[190:200]) == 8  # a probe may be narrower
    later = widths[230:]
    assert sum(map(cheap, later)) <= 1.08 * len(later) * PLAIN_SECONDS

    _, widths = simulate(seeded(hump, lanes), hump, falls, 300, lanes, seed)
    assert widths[230:].count(1) >= 60


def test_good_drafts_are_found_again_after_a_bad_stretch():
    def recovers(number: int) -> float:
        return 0.05 if 100 <= number < 300 else 0.9

    _, widths = simulate(seeded(cheap, 1), cheap, recovers, 400)
    assert widths[340:].count(8) >= 50


def test_a_source_written_off_at_width_one_is_probed_from_savings_and_taken_up_again():
    def improves(number: int) -> float:
        return 0.02 if number < 300 else 0.97

    _, with_probes = simulate(seeded(hump, 1), hump, improves, 2500)
    _, without = simulate(seeded(hump, 1, share=0.0), hump, improves, 2500)
    assert with_probes[-100:].count(1) < 10
    assert set(without[-100:]) == {1}


def test_probes_wait_for_savings_and_keep_their_distance():
    policy = seeded(hump, 1, prior=Prior({Source.HISTORY: 0.05}))
    _, widths = simulate(policy, hump, lambda _: 0.05, 1000)
    probes = [number for number, width in enumerate(widths) if width > 1]
    assert probes
    assert probes[0] > 12
    assert min(later - earlier for earlier, later in pairwise(probes)) >= 12
    assert policy.exploration.budget_seconds >= 0
    assert sum(map(hump, widths)) <= 1.02 * len(widths) * PLAIN_SECONDS


@pytest.mark.parametrize("policy", [seeded(cheap, 4), fixed({4: WIDTHS}, 6)])
def test_a_round_without_drafts_is_width_one(policy):
    assert policy.choose(cohort(0, 0, 0, 0)).width == 1
    barred = policy.choose(cohort(7, 7, 7, 7, ceiling=0))
    assert (barred.width, barred.ceilings) == (1, (0, 0, 0, 0))
    assert "no lane has a draft" in str(policy.explain()[-1])


def test_no_width_is_wider_than_the_drafts_it_could_verify():
    policy = adaptive({1: WIDTHS}, Prior({Source.HISTORY: 0.99}), 0.05)
    for width in WIDTHS:
        policy.costs.seed((1, width), PLAIN_SECONDS)
    assert policy.choose(cohort(2)).width == 4
    assert policy.choose(cohort(2)).ceilings == (2,)
    assert policy.choose(cohort(3)).width == 4


def test_ties_go_to_the_smaller_width():
    policy = adaptive({1: (1, 2)}, Prior({Source.HISTORY: 0.5}), 0.0)
    policy.costs.seed((1, 1), 1.0)
    policy.costs.seed((1, 2), 1.5)
    assert policy.choose(cohort(1)).width == 1


def test_ceilings_bound_each_lane_by_its_drafts_and_its_own_limit():
    policy = fixed({4: WIDTHS}, 6)
    lanes = (
        LaneView(0, 7, Source.HISTORY, 7),
        LaneView(1, 3, Source.CONTEXT, 7),
        LaneView(2, 7, Source.HISTORY, 0),
    )
    assert policy.choose(CohortView(4, lanes)).ceilings == (5, 3, 0)


def test_one_good_lane_does_not_widen_a_batch_that_pays_for_it():
    policy = seeded(lambda width: PLAIN_SECONDS * (1 + 0.4 * (width - 1)), 4, share=0.0)
    assert policy.choose(cohort(7, 0, 0, 0)).width == 1
    assert policy.choose(cohort(7, 7, 7, 7)).width > 1


def test_learned_drafts_are_counted_apart_from_copies():
    policy = seeded(hump, 1, share=0.0)
    for _ in range(40):
        policy.observe(RoundOutcome(1, 8, hump(8), ((0, Source.HISTORY, 7, 0),)))
        policy.observe(RoundOutcome(1, 8, hump(8), ((0, Source.LEARNED, 7, 7),)))
    assert policy.choose(cohort(7, source=Source.LEARNED)).width == 8
    assert policy.choose(cohort(7, source=Source.HISTORY)).width == 1


def test_an_unmeasured_round_teaches_survival_but_no_cost():
    policy = seeded(cheap, 1)
    before = policy.costs.of_batch(1)
    policy.observe(RoundOutcome(1, 8, None, ((0, Source.HISTORY, 7, 0),)))
    assert policy.costs.of_batch(1) == before
    assert policy.survival.acceptance(0, Source.HISTORY, 1)[0] < 0.6


def test_the_fixed_width_is_used_where_it_was_prepared():
    policy = fixed({1: WIDTHS, 8: (1, 2)}, 6)
    assert policy.choose(cohort(7)).width == 6
    narrow = policy.choose(cohort(7, batch=8))
    assert narrow.width == 1
    assert narrow.reason == "fixed width 6 has no graph at batch 8"


def test_impossible_widths_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"fixed_width=5 .*Nearest: 4"):
        fixed({1: WIDTHS}, 5)
    with pytest.raises(PlanError, match="no width-one graph"):
        adaptive({1: (2, 4)}, Prior(), 0.0)
    with pytest.raises(CapacityError, match="batch 2; prepared: \\[1\\]"):
        adaptive({1: WIDTHS}, Prior(), 0.0).choose(cohort(1, 1))


def test_prepared_widths_come_from_decode_and_speculative_graphs():
    graphs = [
        ExecutionGraph(0, "prefill", 1, 512),
        ExecutionGraph(1, "decode", 1, 1),
        ExecutionGraph(2, "speculative", 1, 8, draft_tokens=7, verify_tokens=8),
        ExecutionGraph(3, "speculative", 1, 1, draft_tokens=0, verify_tokens=1),
        ExecutionGraph(4, "speculative", 2, 4, draft_tokens=3, verify_tokens=4),
        ExecutionGraph(5, "speculative", 2, 1, draft_tokens=0, verify_tokens=1),
    ]
    extent = Extent(lanes=2, slots=2, pages=8, pages_per_request=4, width=8, chunk=512, context=256, vocab=32)
    assert prepared_widths(Manifest(tuple(graphs), extent)) == {1: (1, 8), 2: (1, 4)}


def test_an_explanation_names_what_was_compared():
    policy = seeded(cheap, 1)
    policy.choose(cohort(7))
    explanation = policy.explain()[-1]
    assert [option.width for option in explanation.options] == list(WIDTHS)
    assert str(explanation).startswith(f"width {policy.choose(cohort(7)).width} (best expected rate); W1: 1.00 tokens")


def test_widths_beyond_every_lanes_drafts_are_not_even_compared():
    policy = seeded(cheap, 1)
    policy.choose(cohort(2))
    assert [option.width for option in policy.explain()[-1].options] == [1, 2, 4]


def test_plain_rounds_are_measured_before_wide_ones_are_held_against_them():
    policy = adaptive({1: WIDTHS}, Prior({Source.HISTORY: 0.99}), 0.05)
    for _ in range(3):
        choice = policy.choose(cohort(7))
        assert (choice.width, choice.reason) == (1, "plain rounds of this batch are being measured")
        policy.observe(RoundOutcome(1, 1, PLAIN_SECONDS, (LaneOutcome(0, Source.HISTORY, 0, 0),)))
    assert policy.choose(cohort(7)).width == 8


def by_rows(batch: int, width: int) -> float:
    """A machine whose rows are dear."""
    return PLAIN_SECONDS * (3 + batch * width)


def of_rows(acceptance: dict[int, float]) -> Adaptive:
    widths = dict.fromkeys((1, 2, 4), WIDTHS)
    policy = adaptive(widths, Prior(), 0.0)
    for batch in widths:
        for width in WIDTHS:
            policy.costs.seed((batch, width), by_rows(batch, width))
    for request, rate in acceptance.items():
        for _ in range(30):
            policy.observe(RoundOutcome(1, 8, None, (LaneOutcome(request, Source.HISTORY, 7, round(7 * rate)),)))
    return policy


def test_lanes_that_fare_alike_share_a_round_where_rows_are_dear():
    policy = of_rows({0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0})
    first = policy.choose(cohort(7, 7, 7, 7))
    assert (first.lanes, first.width, first.ceilings) == ((0, 2), 8, (7, 7))
    assert "fare alike" in first.reason
    assert "width 8" in str(policy.explain()[-1])
    policy = of_rows({0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0})
    first = policy.choose(cohort(7, 7, 7, 7))
    assert (first.lanes, first.width) == ((0, 2), 1), "the first lane's group goes first, whichever it is"


def test_lanes_share_one_round_where_rows_are_cheap_or_all_fare_alike():
    assert of_rows(dict.fromkeys(range(4), 1.0)).choose(cohort(7, 7, 7, 7)).lanes == (0, 1, 2, 3)
    policy = of_rows({0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0})
    for batch in (1, 2, 4):
        for width in WIDTHS:
            policy.costs.seed((batch, width), PLAIN_SECONDS * (1 + 0.001 * batch * width))
    assert policy.choose(cohort(7, 7, 7, 7)).lanes == (0, 1, 2, 3)


def test_as_many_choices_can_be_explained_as_promised():
    policy = seeded(cheap, 1)
    for _ in range(100):
        policy.choose(cohort(7))
    assert len(policy.explain()) == 64


def test_an_engine_begins_with_the_costs_its_core_measured():
    catalog = Catalog(scripted_manifest(), speculative=True)
    serving = cast(Serving, SimpleNamespace(fixed_width=None, adaptive_verification=True, exploration_share=0.05))
    policy = policy_of(serving, catalog, {(1, 1): 1.0, (1, 8): 1.1, (64, 2): 9.0})
    assert isinstance(policy, Adaptive)
    assert policy.choose(cohort(7)).width > 1, "no plain round has to be measured first"
    assert policy.costs.of_batch(1)[8] == 1.1
