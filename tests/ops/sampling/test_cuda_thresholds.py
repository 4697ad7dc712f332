"""Rows that keep many tokens: thresholds of top-k, top-p and min-p where bins, lists and their edges could go wrong."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
import torch

from tests.ops.sampling.device import target_law
from tests.ops.sampling.test_cuda_law import NEUTRAL, check_equal, gaussian
from tests.sampling.law_checks import Lane, Policy, run_law, single

# Triton's interpreter turns one-element arrays into loop bounds.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

BIN_NATS = 1 / 51


def check(rows: Iterable[tuple[Policy, list[float]]]) -> None:
    """Rows, each a lane of its own, equal the CPU's."""
    lanes: list[Lane | None] = [Lane(policy, [], [[single(x) for x in row]], [None]) for policy, row in rows]
    assert lanes[0] is not None
    check_equal(lanes, len(lanes[0].logits[0]), 1)


def within(random: Random, count: int, low: float, high: float) -> list[float]:
    return [random.uniform(low, high) for _ in range(count)]


def test_more_logits_than_a_chunk_share_the_bin_of_a_threshold():
    row = [0.0, *within(Random(1), 5000, -2.5 * BIN_NATS, -2.4 * BIN_NATS)]
    check((replace(NEUTRAL, top_k=k, top_p=p), row) for k, p in ((0, 0.6), (3100, 1.0), (3100, 0.9), (129, 0.5)))


def test_all_logits_share_one_bin():
    row = within(Random(2), 4000, 7.0, 7.0 + 0.9 * BIN_NATS)
    check((replace(NEUTRAL, top_k=k, top_p=p), row) for k, p in ((0, 0.3), (2000, 1.0), (2000, 0.25), (3999, 0.99)))


@pytest.mark.parametrize("ties", [40, 2500])
def test_equal_logits_across_a_threshold_are_kept_or_dropped_together(ties: int):
    random = Random(ties)
    row = [3.0] * 100 + [2.0] * ties + within(random, 1400, -5.0, 1.9)
    random.shuffle(row)
    for k, p in ((130, 1.0), (0, 0.7), (130, 0.9), (100 + ties, 1.0), (101 + ties, 1.0)):
        check([(replace(NEUTRAL, top_k=k, top_p=p), row)])
        kept = run_law(target_law, [Lane(replace(NEUTRAL, top_k=130), [], [row], [None])], len(row), 1, torch.float32)
        assert (kept > 0).sum() == 100 + ties


def test_top_p_ends_in_the_bin_that_top_k_cuts():
    random = Random(3)
    row = within(random, 150, 4.0, 4.0 + 0.8 * BIN_NATS) + within(random, 2000, 4.0 - 60 * BIN_NATS, 3.9)
    check((replace(NEUTRAL, top_k=k, top_p=p), row) for k in (129, 140) for p in (0.2, 0.97, 0.999))


@pytest.mark.parametrize("spread", [1.2, 30.0])
def test_a_heavy_bin_that_top_k_cuts_leaves_top_p_between_distant_bins(spread: float):
    random = Random(4)
    # What top-k leaves of the last bin is between nothing and most of the mass, and moves top-p's end over many bins.
    row = within(random, 400, -spread, 0.0) + within(random, 6000, -(spread + 0.3) * 1.01, -(spread + 0.3))
    check((replace(NEUTRAL, top_k=k, top_p=0.8), row) for k in (401, 900, 3000, 6399))


@pytest.mark.parametrize("top_k", [129, 2999, 3000, 3001])
def test_top_k_just_above_the_short_way_and_around_the_vocabulary(top_k: int):
    rows = [gaussian(Random(f"{top_k} {sign}"), 3000, 2.0) for sign in "+-"]
    rows.append([-abs(x) - 100 for x in rows[0]])  # all negative, where bits fall as logits grow
    check((replace(NEUTRAL, top_k=top_k, top_p=p), row) for row in rows for p in (1.0, 0.9))


@pytest.mark.parametrize("top_k", [0, 300, 1500])
def test_masked_words_enter_no_threshold(top_k: int):
    random, vocab, lanes = Random(top_k), 3001, []
    for allowed in ({5}, set(range(7, 207)), set(random.sample(range(vocab), 1400))):
        for p in (0.9, 1.0):
            policy = replace(NEUTRAL, top_k=top_k, top_p=p)
            lanes.append(Lane(policy, [], [[single(x) for x in gaussian(random, vocab, 3.0)]], [allowed]))
    check_equal(lanes, vocab, 1)


def test_min_p_above_within_and_below_what_top_k_and_top_p_keep():
    row = gaussian(Random(5), 4000, 2.0)
    row[0] = 12.0
    check(
        (replace(NEUTRAL, temperature=3.0, top_k=k, top_p=p, min_p=single(m)), row)
        for k in (0, 700)
        for p in (1.0, 0.8)
        for m in (1e-5, 0.05, 0.1, 1.0)
    )


def test_logits_on_the_border_of_bins_with_min_p_there():
    row = [-step * BIN_NATS for step in range(600)] * 3
    check((replace(NEUTRAL, top_p=p, min_p=single(torch.tensor(row[40]).exp().item())), row) for p in (0.7, 1.0))


def test_top_p_next_to_0_and_1_keeps_the_peak_and_all_but_the_least():
    row = gaussian(Random(6), 3000, 4.0)
    check((replace(NEUTRAL, top_p=single(p), temperature=t), row) for p in (0.0, 1e-6, 0.9999999) for t in (0.05, 1.0))


def test_rows_of_every_kind_share_one_call():
    random, vocab = Random(7), 5003
    kinds = [
        replace(NEUTRAL, temperature=0.0),
        replace(NEUTRAL, top_k=20, top_p=0.95),
        replace(NEUTRAL, top_p=0.95),
        replace(NEUTRAL, min_p=single(0.05)),
        NEUTRAL,
        replace(NEUTRAL, top_k=500),
        replace(NEUTRAL, top_k=500, top_p=0.9, min_p=single(0.01)),
    ]
    lanes: list[Lane | None] = [
        Lane(policy, [], [[single(x) for x in gaussian(random, vocab, 3.0)]], [None]) for policy in kinds
    ]
    lanes.insert(3, None)
    check_equal(lanes, vocab, 2)
    together = run_law(target_law, lanes, vocab, 2, torch.float32)
    for place, lane in enumerate(lanes):
        assert torch.equal(run_law(target_law, [lane], vocab, 1, torch.float32)[0, 0], together[place, 0]) or not lane
