"""Chain verification: the kernel's draws, the law of what is emitted, and the guards."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flare.ops.sampling import DraftLaw, chain
from flare.ops.sampling.chain_cpu import chain_verify
from tests.sampling.chain_checks import (
    Scenario,
    check_chain_equals_kernel,
    check_chain_law,
    check_rounds_are_independent,
    play,
    world,
)

UNIT = json.loads((Path(__file__).parents[1] / "golden/philox/known_answers.json").read_text())["unit_draw"]
SCENARIOS = [
    Scenario(sources, depth)
    for depth in (0, 1, 2, 3)
    for sources in (
        *[("learned",) * c for c in range(depth + 1)],
        *[("copy",) * c for c in range(1, depth + 1)],
        *[mixed for mixed in (("learned", "copy"), ("copy", "learned", "copy")) if len(mixed) <= depth],
    )
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"D{s.depth}-" + ("+".join(s.sources) or "none"))
def test_emitted_tokens_follow_the_target_law(scenario: Scenario):
    check_chain_law(chain_verify, scenario)


def test_two_rounds_of_a_request_are_independent():
    check_rounds_are_independent(chain_verify, Scenario(("learned", "copy"), 3))


def test_tokens_equal_the_kernel_draw_for_draw():
    check_chain_equals_kernel(chain_verify)


def test_the_reference_equals_the_kernel_too():
    check_chain_equals_kernel(chain.reference, seed=5, lanes=40)


def test_float64_laws_are_verified_alike():
    scenario = Scenario(("learned", "copy"), 3)
    where = world(scenario, 3)

    def in_float64(p, law, drafts, seed, offset):
        law = DraftLaw(law.q.double(), law.point)
        fast, slow = (verify(p.double(), law, drafts, seed, offset) for verify in (chain_verify, chain.reference))
        assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
        return fast

    play(in_float64, scenario, where, 500)


def test_a_lane_does_not_depend_on_its_place_or_neighbours():
    rng = np.random.default_rng(4)
    p = torch.from_numpy(rng.dirichlet(np.ones(5000), (6, 4)).astype(np.float32))
    q = torch.from_numpy(rng.dirichlet(np.ones(5000), (6, 3)).astype(np.float32))
    law, drafts = (
        DraftLaw(q, torch.from_numpy(rng.random((6, 3)) < 0.3)),
        torch.from_numpy(rng.integers(0, 4999, (6, 3))),
    )
    seed, offset = torch.arange(6) * 11, torch.arange(6) * 16
    tokens, accepted = chain_verify(p, law, drafts, seed, offset)
    for b in range(6):
        one = slice(b, b + 1)
        alone = chain_verify(p[one], DraftLaw(q[one], law.point[one]), drafts[one], seed[one], offset[one])
        assert torch.equal(alone[0][0], tokens[b])
        assert alone[1][0] == accepted[b]


def test_rows_at_points_and_markers_are_never_read():
    p = torch.full((1, 4, 5), 0.25)
    p[..., 4] = 0
    drafts, point = torch.tensor([[1, 2, 4]]), torch.tensor([[True, True, False]])
    poison = DraftLaw(torch.full((1, 3, 5), torch.nan), point)
    for seed in range(200):
        stream = torch.tensor([seed]), torch.tensor([0])
        got, want = (chain_verify(p, law, drafts, *stream) for law in (poison, DraftLaw(None, point)))
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("verify", [chain_verify, chain.reference])
@pytest.mark.parametrize("compact", [True, False])
def test_a_unit_draw_at_a_certain_token_still_emits_it(verify, compact: bool):
    p = torch.zeros(1, 2, 5)
    p[:, :, 3] = 1
    q = None if compact else p[:, :1]
    stream = torch.tensor([UNIT["seed"]]), torch.tensor([UNIT["offset"]])
    law, drafts = DraftLaw(q, torch.full((1, 1), compact)), torch.tensor([[3]])
    tokens, accepted = verify(p, law, drafts, *stream)
    assert tokens.tolist() == [[3, -1]]
    assert accepted.tolist() == [0]


@pytest.mark.parametrize("verify", [chain_verify, chain.reference])
@pytest.mark.parametrize("broken", [0.0, torch.nan])
def test_a_row_without_mass_never_emits_the_marker_or_nothing(verify, broken: float):
    p, stream = torch.full((1, 2, 5), broken), (torch.tensor([1]), torch.tensor([0]))
    copy = verify(p, DraftLaw(None, torch.tensor([[True]])), torch.tensor([[2]]), *stream)
    assert copy[0].tolist() == [[2, -1]]
    marker = verify(p, DraftLaw(None, torch.tensor([[False]])), torch.tensor([[4]]), *stream)
    assert marker[0].tolist() == [[0, -1]]
    bonus = verify(p[:, :1], DraftLaw(None, torch.zeros(1, 0, dtype=torch.bool)), torch.zeros(1, 0).long(), *stream)
    assert bonus[0].tolist() == [[0]]


@pytest.mark.parametrize("verify", [chain_verify, chain.reference])
def test_a_learned_draft_without_its_law_is_refused(verify):
    p, law = torch.full((1, 2, 5), 0.25), DraftLaw(None, torch.tensor([[False]]))
    with pytest.raises(ValueError, match="neither a point mass nor the marker"):
        verify(p, law, torch.tensor([[2]]), torch.tensor([1]), torch.tensor([0]))
