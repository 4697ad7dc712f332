"""The round is a transaction for recurrent, sparse and n-gram state alike, and the draft cache holds target truth."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.contract.frames import Field
from tests.recipes.qwen38.tiny import GEOMETRY, committed, tiny_bench
from tests.rounds.harness import GREEDY, Bench, emitted
from tests.rounds.test_speculative import assert_same_state, wrong

PROMPTS = {
    0: [5, 9, 2, 44, 17, 95, 3],
    1: [8, 30, 31] * 21,  # 63 tokens: the first draft crosses a page
    2: [1],
    3: torch.randint(0, 95, (64,), generator=torch.Generator().manual_seed(2)).tolist(),
}


def started(slot: int, prompt: list[int] | None = None, policy=GREEDY) -> Bench:
    core = tiny_bench()
    core.start(slot, prompt or PROMPTS[slot], policy)
    return core


def stepped(slot: int, generated: int, policy=GREEDY) -> tuple[list[int], dict[str, torch.Tensor]]:
    """Tokens and state of width-one rounds, which keep the draft cache."""
    core = tiny_bench()
    tokens = [core.start(slot, PROMPTS[slot], policy)]
    while len(tokens) < generated:
        tokens += emitted(core.round([slot], 1, {})[slot])
    return tokens, committed(core, slot)


TRUTH = {slot: stepped(slot, 30)[0] for slot in PROMPTS}


def copies(slot: int, done: int, accepted: int, depth: int) -> list[int]:
    """Copies that replace the learned drafts: exactly `accepted` of them are what greedy decoding says next."""
    right = TRUTH[slot][done : done + accepted]
    return [*right, *(wrong(token) for token in TRUTH[slot][done + accepted : done + depth])]


@pytest.mark.parametrize(("width", "slot"), [*((width, 0) for width in range(1, 9)), (2, 1), (8, 1), (5, 3), (8, 3)])
def test_every_accepted_and_emitted_count_leaves_the_state_of_single_steps(width, slot):
    for accepted in range(width):
        for emit in {1, (accepted + 2) // 2, accepted + 1}:
            stop = () if emit == accepted + 1 else (TRUTH[slot][emit],)
            policy = replace(GREEDY, stop_ids=stop)
            core = tiny_bench()
            core.start(slot, PROMPTS[slot], policy)
            record = core.round([slot], width, {slot: copies(slot, 1, accepted, width - 1)})[slot]
            kept = emitted(record)
            assert kept == TRUTH[slot][1 : 1 + len(kept)]
            assert len(kept) == accepted + 1 or kept[-1] in stop
            assert_same_state(committed(core, slot), stepped(slot, 1 + len(kept), policy)[1])


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_varying_widths_batches_and_acceptance_equal_single_steps(data):
    many = tiny_bench()
    slots = data.draw(st.lists(st.sampled_from(range(4)), min_size=1, max_size=4, unique=True))
    done = {}
    for slot in slots:
        assert many.start(slot, PROMPTS[slot]) == TRUTH[slot][0]
        done[slot] = 1
    for width in data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=1, max_size=3)):
        cohort = data.draw(st.lists(st.sampled_from(slots), min_size=1, unique=True))
        batch = data.draw(st.sampled_from([size for size in (1, 2, 4) if size >= len(cohort)]))
        accepted = {slot: data.draw(st.integers(0, width - 1)) for slot in cohort}
        drafts = {slot: copies(slot, done[slot], accepted[slot], width - 1) for slot in cohort}
        records = many.round(cohort, width, drafts, batch=batch)
        for slot in cohort:
            assert emitted(records[slot]) == TRUTH[slot][done[slot] : done[slot] + accepted[slot] + 1]
            done[slot] += accepted[slot] + 1
    for slot in slots:
        assert_same_state(committed(many, slot), stepped(slot, done[slot])[1])


@pytest.mark.parametrize("accepted", [0, 7])
def test_width_one_follows_width_eight_after_all_or_nothing(accepted):
    core = started(3)
    core.round([3], 8, {3: copies(3, 1, accepted, 7)})
    core.round([3], 1, {})
    assert_same_state(committed(core, 3), stepped(3, 3 + accepted)[1])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 60, 63, 64])
def test_chunked_prefill_leaves_what_one_chunk_leaves(length):
    prompt = (PROMPTS[3] * 2)[:length]
    whole = started(2, prompt)
    for cut in {1, length // 2, length - 1} - {0, length}:
        core = tiny_bench()
        core.admit(2, prompt, GREEDY)
        core.chunk(2, prompt[:cut], 64, sample=False)
        core.chunk(2, prompt[cut:], 64, sample=True)
        assert_same_state(committed(core, 2), committed(whole, 2))


def test_a_slot_given_to_another_request_remembers_nothing():
    core = started(0, PROMPTS[3])
    core.round([0], 8, {})
    core.start(0, PROMPTS[0])
    fresh = started(0)
    assert_same_state(committed(core, 0), committed(fresh, 0))
    assert emitted(core.round([0], 4, {})[0])[0] == emitted(fresh.round([0], 4, {})[0])[0]


@pytest.mark.parametrize("share_selection", [False, True])
def test_learned_drafts_change_no_greedy_token(share_selection):
    for slot in PROMPTS:
        core = tiny_bench(share_selection=share_selection)
        core.start(slot, PROMPTS[slot], GREEDY)
        tokens, offered = [TRUTH[slot][0]], 0
        while len(tokens) < 24:
            record = core.round([slot], 6, {})[slot]
            tokens += emitted(record)
            offered += record[Field.OFFERED]
            assert record[Field.SOURCES] == 0
        assert tokens[:24] == TRUTH[slot][:24]
        assert offered > 0
        assert GEOMETRY.vocab == 96
