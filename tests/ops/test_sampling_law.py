"""The target law: an independent formula, one-token decoding, and bits that do not depend on the layout."""

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.ops.sampling import law
from flare.ops.sampling.law_cpu import target_law
from tests.sampling.law_checks import (
    Lane,
    check_law,
    check_law_round,
    check_rows_equal_one_token_laws,
    make_lane,
    make_round,
    run_law,
)


@settings(max_examples=80, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_row_equals_the_formula(random: Random):
    check_law_round(target_law, *make_round(random))


def test_seeded_rounds_equal_the_formula():
    check_law(target_law)


def test_the_reference_equals_the_formula():
    check_law(law.reference, rounds=60)


def test_rows_equal_one_token_decoding_after_the_same_prefix():
    check_rows_equal_one_token_laws(target_law)


def test_a_row_has_the_same_bits_in_any_lane_batch_and_width():
    random, vocab = Random(2), 5003
    lanes = [make_lane(random, vocab, drafts) for drafts in (3, 0, 2)]
    together = run_law(target_law, [lanes[0], None, lanes[1], lanes[2]], vocab, 4, torch.float32)
    for place, lane in zip((0, 2, 3), lanes, strict=True):
        rows = len(lane.drafts) + 1
        alone = run_law(target_law, [lane], vocab, rows, torch.float32)
        moved = run_law(target_law, [None, lane, lane], vocab, 8, torch.float32)
        for got in (alone[0], moved[1], moved[2]):
            assert torch.equal(got[:rows], together[place, :rows])


@pytest.mark.parametrize("top_k", [0, 1, 20, 700, 3000])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.3, 0.0])
@pytest.mark.parametrize("spread", [0.01, 4.0])
def test_wide_vocabularies_equal_the_reference(top_k: int, top_p: float, spread: float):
    random, vocab = Random(f"{top_k} {top_p} {spread}"), 9001
    lanes: list[Lane | None] = []
    for temperature in (1.0, 0.6):
        lane = make_lane(random, vocab, 1)
        policy = replace(lane.policy, temperature=temperature, top_k=top_k, top_p=top_p, min_p=0.0)
        rows = [[random.gauss(0, spread) for _ in range(vocab)] for _ in range(2)]
        lanes.append(replace(lane, policy=policy, logits=rows))
    got, want = (run_law(each, lanes, vocab, 2) for each in (target_law, law.reference))
    assert torch.equal(got > 0, want > 0)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=0)


def test_all_ties_at_the_kth_value_survive_in_a_wide_row():
    lane, vocab = make_lane(Random(3), 4096, 0), 4096
    policy = replace(lane.policy, temperature=1.0, top_k=20, top_p=1.0, min_p=0.0, bias={}, repetition=1.0)
    policy = replace(policy, presence=0.0, frequency=0.0, stops=[], min_tokens=0)
    row = [0.0] * vocab
    for token in range(0, 4000, 160):  # 25 equal ones
        row[token] = 5.0
    out = run_law(target_law, [Lane(policy, [], [row], [None])], vocab, 1, torch.float32)
    assert (out[0, 0] > 0).sum() == 25


def test_a_row_with_nothing_allowed_is_a_point_mass():
    lane = make_lane(Random(5), 8, 0)
    for temperature in (0.0, 1.0):
        policy = replace(lane.policy, temperature=temperature)
        for each in (target_law, law.reference):
            out = run_law(each, [Lane(policy, [], lane.logits, [set()])], 8, 1)
            assert out[0, 0].tolist() == [1.0] + [0.0] * 8


@pytest.mark.parametrize("top_k", [0, 3])
def test_logits_that_are_not_finite_end_in_a_law_not_an_error(top_k):
    lane = make_lane(Random(5), 8, 0)
    policy = replace(lane.policy, temperature=1.0, top_k=top_k, top_p=0.9, min_p=0.0)
    for broken in (float("nan"), float("inf")):
        out = run_law(target_law, [Lane(policy, [], [[0.0, broken] * 4], [None])], 8, 1)
        assert out[0, 0].tolist() == [1.0] + [0.0] * 8


def test_float32_rows_sum_to_one():
    random = Random(6)
    lanes = [make_lane(random, 3001, 3) for _ in range(3)]
    sums = run_law(target_law, lanes, 3001, 4, torch.float32).double().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-6)
