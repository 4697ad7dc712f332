"""The law of every row of a wide round is the law of one-token decoding after the same prefix."""

from dataclasses import replace

import pytest
import torch

from flare.contract.policies import SamplingPolicy
from tests.rounds.harness import SHAPE, Bench, bench, emitted, random_weights

WEIGHTS = random_weights(seed=9)
PROMPT = [5, 9, 2, 44, 17, 9, 9]
DRAFTS = [9, 9, 3, 60, 0, 3, 9]  # repeats and new tokens, so that counts matter
POLICIES = {
    "repetition": SamplingPolicy(repetition=1.4),
    "presence": SamplingPolicy(presence=1.5),
    "frequency": SamplingPolicy(frequency=0.8),
    "bias": SamplingPolicy(logit_bias=((3, 4.0), (9, -7.0))),
    "min_tokens": SamplingPolicy(min_tokens=9, stop_ids=(3, 60)),
    "filters": SamplingPolicy(top_k=12, top_p=0.9, min_p=0.02),
    "everything": SamplingPolicy(
        temperature=0.7,
        top_k=20,
        top_p=0.95,
        min_p=0.01,
        repetition=1.2,
        presence=0.3,
        frequency=0.2,
        logit_bias=((9, 2.0),),
        min_tokens=8,
        stop_ids=(60,),
    ),
}


def after_rejections(policy: SamplingPolicy, rounds: int) -> tuple[Bench, list[int]]:
    """A request whose wide rounds rejected every draft; greedy, so that the path is known."""
    core = bench(WEIGHTS)
    tokens = [core.start(0, PROMPT, replace(policy, temperature=0.0, max_tokens=200))]
    for _ in range(rounds):
        unlikely = [(token + 31) % SHAPE.vocab for token in tokens[-1:] * 7]
        record = core.round([0], 8, {0: unlikely})[0]
        tokens += emitted(record)
    core.model.requests.policy.temperature[0] = policy.temperature
    return core, tokens


def one_token_law(policy: SamplingPolicy, generated: list[int]) -> torch.Tensor:
    """The law after `generated`, from a core that only ever decoded one token at a time."""
    core = bench(WEIGHTS)
    core.admit(0, PROMPT, replace(policy, max_tokens=200), generated)
    core.chunk(0, [*PROMPT, *generated[:-1]], 64, sample=False)
    core.decode([0])
    return core.model.laws[0].clone()


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_every_row_has_the_law_of_one_token_decoding(name, rounds):
    policy = POLICIES[name]
    core, tokens = after_rejections(policy, rounds)
    assert len(tokens) >= 1 + rounds
    core.round([0], 8, {0: DRAFTS})
    laws = core.model.laws[:8].clone()
    for row in range(8):
        wanted = one_token_law(policy, [*tokens, *DRAFTS[:row]])
        assert (laws[row] - wanted).norm() <= 1e-10 * wanted.norm(), f"row {row}"


@pytest.mark.parametrize("name", POLICIES)
def test_the_policy_changes_the_law(name):
    """Guards the test above: were a policy without effect, equality would say nothing."""
    plain = one_token_law(SamplingPolicy(), [9, 9, 3])
    moved = (one_token_law(POLICIES[name], [9, 9, 3]) - plain).abs() / plain.clamp_min(1e-12)
    assert moved[:-1].max() > 0.1
