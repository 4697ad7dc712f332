"""The drafter: its cache is target truth after every round, and drafts are accepted as their laws foretell."""

import numpy as np
import pytest
import torch

from flare.contract.frames import Field
from flare.contract.policies import SamplingPolicy
from flare.drafting.contract import Pairs
from tests.recipes.qwen38.test_golden import prompt_rows
from tests.recipes.qwen38.test_rounds import PROMPTS, copies
from tests.recipes.qwen38.tiny import committed, tiny_bench
from tests.rounds.harness import GREEDY, Bench, emitted

WARM = SamplingPolicy(temperature=1.0, top_k=40, top_p=0.98, max_tokens=200)


def draft_cache(core: Bench, slot: int) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in committed(core, slot).items() if name.startswith("mtp.")}


def recorded(core: Bench) -> dict[int, tuple[int, torch.Tensor]]:
    """Position → (token, feedback) of every pair that slot 0 of this core will absorb; the last write counts."""
    pairs, absorb = {}, core.model.drafter.absorb

    def recording(given):
        for row in range(int(given.rows.counts[0])):
            position = int(given.rows.positions[0, row])
            pairs[position] = int(given.rows.tokens[0, row]), given.feedback[0, row].clone()
        absorb(given)

    core.model.drafter.absorb = recording
    return pairs


@pytest.mark.parametrize("share_selection", [False, True])
@pytest.mark.parametrize("widths", [(1,), (8,), (8, 1, 5), (3, 8, 8)])
@pytest.mark.parametrize("accepted", [0, 2, 7])
def test_the_draft_cache_equals_the_teacher_forced_one_bit_for_bit(widths, accepted, share_selection):
    """Float32 rows have the same bits at any width: one absorption of all pairs must leave what many rounds left."""
    core = tiny_bench("float32", share_selection=share_selection)
    pairs = recorded(core)
    done = len([core.start(0, PROMPTS[0], GREEDY)])
    for width in widths:
        agreeing = min(accepted, width - 1)
        done += len(emitted(core.round([0], width, {0: copies(0, done, agreeing, width - 1)})[0]))
    assert sorted(pairs) == list(range(len(PROMPTS[0]) + done - 2))
    forced = tiny_bench("float32")
    forced.model.requests.consumed[0] = len(pairs) + 1
    tokens = torch.tensor([[pairs[position][0] for position in sorted(pairs)]])
    feedback = torch.stack([pairs[position][1] for position in sorted(pairs)])[None]
    with torch.inference_mode():
        forced.model.drafter.absorb(Pairs(prompt_rows(forced, tokens), feedback))
    found, wanted = draft_cache(core, 0), draft_cache(forced, 0)
    assert len(wanted) == 5
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_n_consumed_tokens_leave_n_minus_one_pairs_in_contiguous_places():
    core = tiny_bench()
    core.start(0, PROMPTS[0], GREEDY)
    for width in (1, 4, 8, 2):
        record = core.round([0], width, {})[0]
        consumed = int(record[Field.CONSUMED])
        keys = core.state["mtp.layers.0.self_attn.keys"][list(core.pages(0))].flatten(0, 1)
        assert keys[: consumed - 1].isfinite().all()
        assert record[Field.DRAFT_POSITION] == consumed - 1


def test_drafts_are_accepted_as_often_as_their_laws_overlap():
    """E[accepted] at each depth is Σ min(p, q) of the rows that depth saw."""
    core = tiny_bench("float32", width=4)
    core.start(0, PROMPTS[0], WARM)
    start = {name: tensor.clone() for name, tensor in core.state.items()}
    hits, expectations = {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}
    for seed in range(200):
        for name, tensor in core.state.items():
            tensor.copy_(start[name])
        core.model.requests.seed[0] = seed * 7919 + 13
        record = core.round([0], 4, {})[0]
        assert record[Field.OFFERED] == 3
        laws, proposals = core.model.laws, core.model.proposals
        for depth in range(3):
            if record[Field.ACCEPTED] >= depth:
                overlap = torch.minimum(laws[depth], proposals[depth, 0]).sum()
                expectations[depth].append(float(overlap))
                hits[depth].append(bool(record[Field.ACCEPTED] > depth))
    for depth, chances in expectations.items():
        chance = np.array(chances)
        deviation = 3 * np.sqrt((chance * (1 - chance)).sum())
        assert abs(sum(hits[depth]) - chance.sum()) <= deviation, f"depth {depth}: {sum(hits[depth])} of {chance.sum()}"
    assert 0 < sum(hits[0]) < 200


def test_a_drafter_that_absorbs_nothing_is_noticed(monkeypatch):
    """Guards the cache test: without absorption a proposal's entries stay."""
    core = tiny_bench("float32")
    core.start(0, PROMPTS[0], GREEDY)
    monkeypatch.setattr(type(core.model.drafter), "absorb", lambda self, pairs: None)
    core.round([0], 8, {0: copies(0, 1, 3, 7)})
    honest = tiny_bench("float32")
    monkeypatch.undo()
    honest.start(0, PROMPTS[0], GREEDY)
    tokens = emitted(honest.round([0], 8, {0: copies(0, 1, 3, 7)})[0])
    assert len(tokens) == 4
    found, wanted = draft_cache(core, 0), draft_cache(honest, 0)
    assert any(not torch.equal(found[name].nan_to_num(), wanted[name].nan_to_num()) for name in wanted)
