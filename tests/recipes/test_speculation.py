"""Speculation changes how many tokens a round yields, never which tokens greedy decoding yields."""

import pytest

import flare
from flare.errors import RequestError
from tests.recipes.tiny_core import arm, tiny_core

PROMPTS = ["the lake the lake the", "ab" * 40, "hello hello", "1 2 3 1 2 3 1 2", "x", "the the the hell hell he"]
GREEDY = flare.Sampling(temperature=0, max_tokens=48, ignore_eos=True)
NO_COPIES = ("serving.history_drafts=false", "serving.context_drafts=false")
HISTORY = ("serving.history_drafts=true", "serving.context_drafts=false")
BOTH = ("serving.history_drafts=true", "serving.context_drafts=true")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def core(folder):
    with tiny_core(folder) as core:
        yield core


@pytest.fixture(scope="module")
def truth(folder):
    """One token at a time, one request at a time, without a drafter."""
    with tiny_core(folder, "serving.mtp_draft_tokens=0") as core, flare.Engine(core) as engine:
        return [engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS]


def generate(core, prompts, sampling, together, remembered=()):
    """All at once, or one after the other over the same engine, whose history holds the remembered responses."""
    with flare.Engine(core) as engine:
        for response in remembered:
            engine.remember(response)
        return engine.generate(prompts, sampling) if together else [engine.generate(each, sampling) for each in prompts]


@pytest.mark.parametrize("copies", [NO_COPIES, HISTORY, BOTH], ids=["none", "history", "both"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("width", [*range(1, 9), None], ids=[*map(str, range(1, 9)), "adaptive"])
def test_greedy_tokens_are_the_same_at_any_width_batch_and_policy(core, folder, truth, width, together, copies):
    policy = ("serving.adaptive_verification=true",) if width is None else (f"serving.fixed_width={width}",)
    done = generate(arm(core, folder, *policy, *copies), PROMPTS, GREEDY, together, truth[:3])
    assert [completion.token_ids for completion in done] == truth
    offered = sum(completion.speculation.offered for completion in done)
    assert (offered > 0) == (width != 1 and copies is not NO_COPIES)


def test_copies_are_accepted_and_told_apart(core, folder):
    """A prompt that holds what the answer repeats serves context copies until the ring holds it too."""
    only = {token: 100.0 if token == 70 else -100.0 for token in range(262)}
    repeat = flare.Sampling(temperature=0, max_tokens=48, ignore_eos=True, logit_bias=only)
    done = generate(arm(core, folder, "serving.fixed_width=8", *BOTH), [[70] * 20], repeat, together=True)[0]
    assert done.token_ids == (70,) * 48
    assert set(done.speculation.by_source) == {"history", "context"}
    assert done.speculation.accepted == done.speculation.offered > 20
    assert done.speculation.emitted + 1 == done.usage.completion_tokens


@pytest.mark.parametrize("width", [1, 3, 8])
def test_sampled_tokens_are_the_same_in_any_lane_and_batch_at_a_fixed_width(folder, width):
    """History is off, and the core holds the fixed width alone: a request's rounds then depend on itself only."""
    warm = flare.Sampling(temperature=0.9, top_k=30, top_p=0.95, seed=5, max_tokens=32, ignore_eos=True)
    with tiny_core(folder, f"serving.fixed_width={width}", "serving.history_drafts=false") as one:
        alone = generate(one, [PROMPTS[1]], warm, together=True)[0].token_ids
        for lane in range(4):
            prompts = [PROMPTS[0]] * 4
            prompts[lane] = PROMPTS[1]
            assert generate(one, prompts, warm, together=True)[lane].token_ids == alone


@pytest.mark.parametrize("depth", range(1, 8))
def test_exactly_max_tokens_come_out_at_every_depth(core, folder, depth):
    with flare.Engine(arm(core, folder, f"serving.fixed_width={depth + 1}", *BOTH)) as engine:
        for budget in range(1, 13):
            wishes = flare.Sampling(temperature=0, max_tokens=budget, ignore_eos=True)
            done = engine.generate(PROMPTS[1], wishes)
            assert len(done.token_ids) == done.usage.completion_tokens == len(done.sources) == budget
            assert done.finish_reason == "length"


def test_a_stop_inside_an_accepted_block_leaves_nothing_after_it(core, folder, truth):
    """Every token of the greedy answer in turn is the stop: ids, logprobs, sources, usage and counts end with it."""
    with flare.Engine(arm(core, folder, "serving.fixed_width=8", *BOTH)) as engine:
        for place in range(0, 40, 3):
            stop = truth[1][place]
            first = truth[1].index(stop)
            wishes = flare.Sampling(temperature=0, max_tokens=48, ignore_eos=True, stop_token_ids=[stop], logprobs=0)
            done = engine.generate(PROMPTS[1], wishes)
            assert done.token_ids == truth[1][: first + 1]
            assert done.finish_reason == "stop"
            assert len(done.logprobs) == len(done.sources) == done.usage.completion_tokens == first + 1
            assert sum(row.emitted for row in done.rounds) == first


def test_a_request_may_turn_speculation_off_or_bound_it(core, folder):
    with flare.Engine(arm(core, folder, "serving.fixed_width=8", *BOTH)) as engine:
        off = engine.generate(PROMPTS[1], flare.Sampling(temperature=0, max_tokens=24, speculation=False))
        assert off.speculation.offered == 0
        assert off.speculation.reason is not None
        bounded = engine.generate(PROMPTS[1], flare.Sampling(temperature=0, max_tokens=24, max_draft_tokens=2))
        assert max(row.offered for row in bounded.rounds) == 2


def test_a_prompt_is_never_shared_history(core, folder):
    """The ring holds generated tokens only: a prompt that contains the answer yields no history copy."""
    with flare.Engine(arm(core, folder, "serving.fixed_width=8", *HISTORY)) as engine:
        first = engine.generate(PROMPTS[1], flare.Sampling(temperature=0, max_tokens=3, ignore_eos=True))
        assert first.speculation.offered == 0


def test_logprobs_of_accepted_tokens_equal_those_of_one_token_decoding(core, folder):
    wishes = flare.Sampling(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
    plain = generate(arm(core, folder, "serving.fixed_width=1"), [PROMPTS[1]], wishes, together=True)[0]
    wide = generate(arm(core, folder, "serving.fixed_width=8", *BOTH), [PROMPTS[1]] * 2, wishes, together=False)[1]
    assert wide.speculation.accepted > 0
    for ours, theirs in zip(wide.logprobs, plain.logprobs, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def test_two_engines_over_one_core_are_refused_in_a_sentence(folder):
    with tiny_core(folder) as core:
        with flare.Engine(core), pytest.raises(RequestError, match="already serves an engine"):
            flare.Engine(core)
        with flare.Engine(core) as engine:
            assert engine.generate("x", flare.Sampling(max_tokens=2, ignore_eos=True)).usage.completion_tokens == 2
        with pytest.raises(RequestError, match="engine is closed"):
            engine.generate("x")
    with pytest.raises(RequestError, match="closed"):
        flare.Engine(core)
