"""The round is a transaction: verify and commit(t) leave what t single-token steps leave."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.contract.frames import RECORD_FIELDS, Field, Source, Terminal
from flare.contract.manifest import ExecutionGraph
from flare.contract.policies import SamplingPolicy
from flare.rounds.speculative import speculative_round
from tests.rounds.harness import GREEDY, SHAPE, Bench, bench, emitted, random_weights

WEIGHTS = random_weights()
TOLERANCE = 1e-10  # float64 sums of a few hundred terms, another order of summation per width
PROMPTS = {0: [5, 9, 2, 44, 17], 1: [8] * 63, 2: [1, 2, 3], 3: list(range(60))}


def greedy_truth(slot: int, count: int, policy: SamplingPolicy = GREEDY) -> list[int]:
    """Tokens of one-token decoding in a model of its own."""
    alone = bench(WEIGHTS)
    tokens = [alone.start(slot, PROMPTS[slot], policy)]
    while len(tokens) < count:
        tokens += emitted(alone.decode([slot])[slot])
    return tokens


TRUTH = {slot: greedy_truth(slot, 40) for slot in PROMPTS}


def wrong(token: int) -> int:
    return (token + 1) % SHAPE.vocab


def stepped(slot: int, generated: int, policy: SamplingPolicy = GREEDY) -> dict[str, torch.Tensor]:
    """Committed state of one-token decoding after so many generated tokens."""
    alone = bench(WEIGHTS)
    alone.start(slot, PROMPTS[slot], policy)
    for _ in range(generated - 1):
        alone.decode([slot])
    return alone.committed(slot)


def assert_same_state(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, tensor in wanted.items():
        if tensor.dtype.is_floating_point:
            error = (found[name] - tensor).norm() / (tensor.norm() + 1e-30)
            assert error <= TOLERANCE, f"{name}: {error}"
        else:
            assert torch.equal(found[name], tensor), f"{name}: {found[name]} != {tensor}"


def drafts_accepted(slot: int, done: int, accepted: int, depth: int) -> list[int]:
    """Copies of which exactly `accepted` are what greedy decoding says next."""
    right = TRUTH[slot][done : done + accepted]
    return [*right, *(wrong(token) for token in TRUTH[slot][done + accepted : done + depth])]


@pytest.mark.parametrize("clip", ["budget", "stop"])
@pytest.mark.parametrize("width", range(1, 9))
def test_every_accepted_and_emitted_count_leaves_the_state_of_single_steps(width, clip):
    """The round emits all of a + 1 tokens, or is cut to t of them by the output budget or by a stop id."""
    for accepted in range(width):
        for emit in range(1, accepted + 2):
            policy = GREEDY
            if emit <= accepted:  # the first token came from prefill
                stop = TRUTH[0][emit]
                policy = replace(GREEDY, max_tokens=1 + emit) if clip == "budget" else replace(GREEDY, stop_ids=(stop,))
                if clip == "stop" and stop in TRUTH[0][:emit]:
                    continue
            one = bench(WEIGHTS)
            one.start(0, PROMPTS[0], policy)
            record = one.round([0], width, {0: drafts_accepted(0, 1, accepted, width - 1)})[0]
            assert emitted(record) == TRUTH[0][1 : 1 + emit]
            assert record[Field.EMITTED] == emit
            # No draft is offered for the budget's last token; a stop may be an accepted draft itself.
            cut_by_budget = clip == "budget" and emit <= accepted
            assert record[Field.ACCEPTED] == (emit - 1 if cut_by_budget else min(accepted, emit))
            assert record[Field.OFFERED] == min(width - 1, policy.max_tokens - 2)
            ended = Terminal.LENGTH if clip == "budget" else Terminal.STOP
            assert record[Field.TERMINAL] == (ended if emit <= accepted else Terminal.LIVE)
            assert_same_state(one.committed(0), stepped(0, 1 + emit, policy))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_varying_widths_batches_and_acceptance_equal_single_steps(data):
    """Rounds of varying shape over up to four requests; nothing outside their own storage changes."""
    many = bench(WEIGHTS)
    slots = data.draw(st.lists(st.sampled_from(range(4)), min_size=1, max_size=4, unique=True))
    done = {}
    for slot in slots:
        assert many.start(slot, PROMPTS[slot]) == TRUTH[slot][0]
        done[slot] = 1
    for _ in range(data.draw(st.integers(1, 4))):
        width = data.draw(st.integers(1, 8))
        cohort = data.draw(st.lists(st.sampled_from(slots), min_size=1, unique=True))
        batch = data.draw(st.sampled_from([size for size in (1, 2, 4) if size >= len(cohort)]))
        ceilings = {slot: data.draw(st.integers(0, width - 1)) for slot in cohort}
        accepted = {slot: data.draw(st.integers(0, width - 1)) for slot in cohort}
        drafts = {slot: drafts_accepted(slot, done[slot], accepted[slot], width - 1) for slot in cohort}
        before = snapshot_of_others(many, cohort)
        records = many.round(cohort, width, drafts, batch=batch, ceilings=ceilings)
        for slot in cohort:
            count = min(accepted[slot], ceilings[slot]) + 1
            assert emitted(records[slot]) == TRUTH[slot][done[slot] : done[slot] + count]
            assert records[slot][Field.OFFERED] == ceilings[slot]
            done[slot] += count
        for name, tensor in snapshot_of_others(many, cohort).items():
            assert torch.equal(tensor.nan_to_num(-7.0), before[name].nan_to_num(-7.0)), name
    for slot in slots:
        assert_same_state(many.committed(slot), stepped(slot, done[slot]))


def snapshot_of_others(many: Bench, cohort: list[int]) -> dict[str, torch.Tensor]:
    """Everything that no lane of the cohort owns, the null page and slot apart."""
    others = [slot for slot in range(4) if slot not in cohort]
    pages = [page for slot in others for page in many.pages(slot)]
    return {
        name: (tensor[pages] if name.endswith((".keys", ".values")) else tensor[others]).clone()
        for name, tensor in many.state.items()
        if not name.startswith("round.")
    }


@pytest.mark.parametrize("ending", [{"max_tokens": 2}, {"stop_ids": (TRUTH[0][1],)}], ids=["length", "stop"])
def test_a_dead_lane_emits_nothing_and_says_so(ending):
    one = bench(WEIGHTS)
    one.start(0, PROMPTS[0], replace(GREEDY, **ending))
    assert one.round([0], 4, {0: TRUTH[0][1:4]})[0][Field.TERMINAL] != Terminal.LIVE
    state = one.committed(0)
    record = one.round([0], 4, {0: TRUTH[0][2:5]})[0]
    assert record[Field.EMITTED] == 0
    assert record[Field.REQUEST_ID] == 100
    assert_same_state(one.committed(0), state)


def test_another_generation_leaves_the_slot_untouched():
    one = bench(WEIGHTS)
    one.start(0, PROMPTS[0])
    one.model.requests.generation[0] = 8
    state = one.committed(0)
    assert one.round([0], 4, {0: TRUTH[0][1:4]})[0][Field.EMITTED] == 0
    assert_same_state(one.committed(0), state)


@pytest.mark.parametrize("place", range(4))
def test_a_stop_inside_an_accepted_block_ends_there(place):
    """The stop token stays pending and is never consumed; drafts after it leave no trace."""
    truth = TRUTH[0]
    stop = truth[1 + place]
    first = truth.index(stop, 1)
    policy = replace(GREEDY, stop_ids=(stop,))
    one = bench(WEIGHTS)
    one.start(0, PROMPTS[0], policy)
    record = one.round([0], 8, {0: truth[1:8]})[0]
    assert emitted(record) == truth[1 : first + 1]
    assert record[Field.TERMINAL] == Terminal.STOP
    assert one.model.requests.pending[0] == stop
    assert_same_state(one.committed(0), stepped(0, first + 1, policy))


def anchored_round(one: Bench, continuation: list[int], start: int, before: int) -> np.ndarray:
    """A round of width four whose lane carries the same continuation as the rounds before it."""
    arguments = one.arguments
    one.name_lanes([2])
    arguments.copy_position[0], arguments.copy_before[0], arguments.copy_length[0] = start, before, len(continuation)
    arguments.copy_tokens[0], arguments.copy_source[0], arguments.ceilings[0] = continuation, Source.CONTEXT, 3
    return one.replay(speculative_round, ExecutionGraph(3, "speculative", 1, 4))[2]


def test_one_continuation_serves_several_rounds_and_then_offers_nothing():
    truth = TRUTH[2]
    one = bench(WEIGHTS)
    one.start(2, PROMPTS[2])
    start = int(one.model.requests.consumed[2]) + 1
    for expected in (3, 3, 3, 2, 0):
        record = anchored_round(one, truth[1:15], start, truth[0])
        assert (record[Field.OFFERED], record[Field.ACCEPTED]) == (expected, expected)
        assert record[Field.SOURCES] == sum(int(Source.CONTEXT) << (2 * depth) for depth in range(expected))


@pytest.mark.parametrize("place", [0, 3, 4])
def test_a_continuation_that_disagrees_with_what_was_committed_offers_nothing(place):
    """Tokens 0–3 are committed and 4 is pending after the first round; a wrong one among them ends the copy."""
    truth = TRUTH[2]
    one = bench(WEIGHTS)
    one.start(2, PROMPTS[2])
    start = int(one.model.requests.consumed[2]) + 1
    assert anchored_round(one, truth[1:15], start, truth[0])[Field.EMITTED] == 4
    stale = list(truth[1:15])
    stale[place] = wrong(stale[place])
    assert anchored_round(one, stale, start, truth[0])[Field.OFFERED] == (0 if place < 4 else 3)


def test_a_continuation_after_another_token_offers_nothing():
    one = bench(WEIGHTS)
    one.start(2, PROMPTS[2])
    start = int(one.model.requests.consumed[2]) + 1
    assert anchored_round(one, TRUTH[2][1:15], start, wrong(TRUTH[2][0]))[Field.OFFERED] == 0


def test_records_pad_tokens_with_minus_one():
    one = bench(WEIGHTS)
    one.start(0, PROMPTS[0])
    record = one.round([0], 3, {})[0]
    assert record[RECORD_FIELDS + 1 :].tolist() == [-1] * 7
