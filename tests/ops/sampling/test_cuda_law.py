"""The target law's kernels: the CPU's law for every mix of policies, and bits that do not depend on the layout."""

from dataclasses import replace
from random import Random

import pytest
import torch

from flare.ops.sampling import cuda_masses, law_cpu
from tests.ops.sampling.device import target_law
from tests.sampling.law_checks import Lane, Policy, check_rows_equal_one_token_laws, make_lane, make_round, run_law

# Triton's interpreter turns one-element arrays into loop bounds.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

NEUTRAL = Policy(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, bias={},
    min_tokens=0, stops=[], prompt=[], generated=[0],
)  # fmt: skip


def check_equal(lanes: list[Lane | None], vocab: int, width: int) -> None:
    """Same survivors as on the CPU, probabilities of float32, marker 0."""
    got = run_law(target_law, lanes, vocab, width, torch.float32)
    want = run_law(law_cpu.target_law, lanes, vocab, width, torch.float32)
    assert torch.equal(got > 0, want > 0), "survivors differ"
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)
    assert (got[..., vocab] == 0).all()
    torch.testing.assert_close(got.double().sum(-1), torch.ones(got.shape[:2]).double(), rtol=0, atol=1e-6)


def gaussian(random: Random, vocab: int, spread: float) -> list[float]:
    return [random.gauss(0, spread) for _ in range(vocab)]


@pytest.mark.parametrize("seed", range(24))
def test_random_policies_equal_the_cpu_law(seed: int):
    check_equal(*make_round(Random(seed)))


@pytest.mark.parametrize("top_k", [0, 1, 20, 128, 700, 9001])
@pytest.mark.parametrize("spread", [0.01, 4.0])
def test_wide_rows_equal_the_cpu_law(top_k: int, spread: float):
    random, vocab, lanes = Random(f"{top_k} {spread}"), 9001, []
    for top_p, min_p, temperature in ((1.0, 0.0, 1.0), (0.95, 0.0, 0.7), (0.3, 0.01, 2.0), (0.0, 0.2, 1.0)):
        policy = replace(NEUTRAL, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
        lanes.append(Lane(policy, [], [gaussian(random, vocab, spread)], [None]))
    check_equal(lanes, vocab, 1)


@pytest.mark.parametrize("top_k", [0, 20])
@pytest.mark.parametrize("vocab", [2047, 5003])
def test_penalties_masks_and_drafts_count_in_wide_rows(top_k: int, vocab: int):
    random = Random(top_k + vocab)
    lanes = [make_lane(random, vocab, drafts) for drafts in (2, 0)]
    for place, lane in enumerate(lanes):
        policy = replace(
            lane.policy, temperature=0.7, top_k=top_k, top_p=0.9, repetition=1.5, presence=0.5, frequency=0.25,
            bias={7: 4.0, vocab - 1: 5.0}, min_tokens=3, stops=[vocab - 1], prompt=list(range(50, 900)),
        )  # fmt: skip
        allowed = None if place else set(random.sample(range(vocab), vocab // 2)) | {lane.drafts[0]}
        lanes[place] = replace(lane, policy=policy, allowed=[allowed] * len(lane.logits))
    check_equal([lanes[0], None, lanes[1]], vocab, 4)


@pytest.mark.parametrize(("ties", "temperature", "survivors"), [(25, 1.0, 25), (300, 1.0, 300), (300, 0.0, 1)])
def test_all_ties_at_the_kth_value_survive_and_one_at_temperature_0(ties: int, temperature: float, survivors: int):
    row = [0.0] * 4000
    for token in range(3, 3 + 13 * ties, 13):
        row[token] = 5.0
    policy = replace(NEUTRAL, top_k=20, temperature=temperature)
    out = run_law(target_law, [Lane(policy, [], [row], [None])], 4000, 1, torch.float32)
    assert (out > 0).sum() == survivors
    assert out[0, 0, 3] == pytest.approx(1 / survivors)


def test_a_row_of_equal_logits_is_uniform_or_its_first_token():
    lanes: list[Lane | None] = [
        Lane(replace(NEUTRAL, temperature=t, top_p=p), [], [[1.5] * 3000], [None]) for t, p in ((0.0, 1.0), (1.0, 0.5))
    ]
    out = run_law(target_law, lanes, 3000, 1, torch.float32)
    assert out[0, 0].nonzero().tolist() == [[0]]
    assert (out[1, 0, :3000] > 0).all()


def test_forbidden_rows_and_broken_logits_end_in_a_point_mass():
    point = [1.0] + [0.0] * 8
    for top_k, temperature in ((0, 1.0), (3, 1.0), (0, 0.0)):
        policy = replace(NEUTRAL, top_k=top_k, temperature=temperature, top_p=0.9)
        rows = [Lane(policy, [], [[0.0] * 8], [set()])]
        if temperature:
            rows += [Lane(policy, [], [[0.0, broken] * 4], [None]) for broken in (float("nan"), float("inf"))]
        for lane in rows:
            assert run_law(target_law, [lane], 8, 1, torch.float32)[0, 0].tolist() == point


@pytest.mark.parametrize("top_k", [0, 20])
def test_a_row_has_the_same_bits_in_any_lane_batch_and_width(top_k: int):
    random, vocab = Random(2), 5003
    lanes = [make_lane(random, vocab, drafts) for drafts in (2, 0)]
    lanes = [replace(lane, policy=replace(lane.policy, top_k=top_k, top_p=0.9, temperature=0.8)) for lane in lanes]
    together = run_law(target_law, [lanes[0], None, lanes[1]], vocab, 3, torch.float32)
    for place, lane in zip((0, 2), lanes, strict=True):
        rows = len(lane.drafts) + 1
        assert torch.equal(run_law(target_law, [None, lane], vocab, 4, torch.float32)[1, :rows], together[place, :rows])


def test_rows_equal_one_token_decoding_after_the_same_prefix():
    check_rows_equal_one_token_laws(target_law, rounds=4)


def test_a_row_whose_masses_no_sum_could_hold_is_refused():
    most, unit = cuda_masses.MOST_LOGITS, int(cuda_masses.UNIT.value)
    assert most * unit <= torch.iinfo(torch.int64).max < (most + 1) * unit
    lane = Lane(NEUTRAL, [], [[0.0] * (most + 1)], [None])
    with pytest.raises(AssertionError, match="summed as integers"):
        run_law(target_law, [lane], most + 1, 1, torch.float32)
