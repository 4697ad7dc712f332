"""Prefix hits, branches, parking and the depth of the pipeline change no greedy token of either kind of model.

Models, policies, prompt lengths and ways to resume meet pairwise: the large model takes one policy where the small one
takes the others.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest

import flare
from flare.config.compose import compose
from tests.recipes.resuming import GREEDY, LENGTHS, answer, crowded, prompt_of
from tests.recipes.tiny_core import tiny_core, tiny_overrides

SMALL = ["preparation.dtype=float32", "preparation.threads=1", "preparation.memory_bytes=2GiB", "serving.concurrency=4"]
PARKED = (40, 63, 64, 66)  # prompts that grow into each other's pages
ONE, FOUR, ADAPTIVE = "serving.fixed_width=1", "serving.fixed_width=4", "serving.adaptive_verification=true"
TINY, HYBRID = "smollm2", "qwen38_small"
HITS = [
    (HYBRID if (row + column) % 3 == 0 else TINY, length, policy)
    for row, length in enumerate(LENGTHS)
    for column, policy in enumerate((FOUR, ONE, ADAPTIVE))
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """By model, a core and how to serve it under other `serving.*` keys; each is prepared once, in whatever order."""
    cores = {}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setenv("FLARE_CACHE", str(tmp_path_factory.mktemp("cache")))

        def of(model):
            if model not in cores:
                if model == TINY:
                    folder = tmp_path_factory.mktemp("tiny")
                    core, overrides = tiny_core(folder), [*tiny_overrides(folder), "serving.concurrency=4"]
                else:
                    overrides = [*SMALL, "serving.mtp_draft_tokens=7"]
                    core = flare.prepare(model, overrides)
                opened.enter_context(core)
                cores[model] = core, lambda *keys: replace(core, config=compose(model, [*overrides, *keys]))
            return cores[model]

        yield of


@pytest.fixture(params=[TINY, HYBRID])
def served(request, prepared):
    """One of the prepared cores."""
    return prepared(request.param)


@pytest.fixture(scope="module")
def known():
    """Cold answers by model, prompt and length."""
    return {}


@pytest.fixture
def cold(served, known):
    """The tokens of every prompt the tests use, one request at a time, without cache and drafts."""
    core, arm = served

    def tokens(prompt, max_tokens=GREEDY.max_tokens):
        key = (core.config.model_name(), tuple(prompt), max_tokens)
        if key not in known:
            off = arm("serving.prefix_cache=false", "serving.fixed_width=1")
            with flare.Engine(off) as engine:
                done = engine.generate(list(prompt), replace(GREEDY, max_tokens=max_tokens))
                assert done.usage.cached_tokens == 0
                known[key] = done.token_ids
        return known[key]

    return tokens


def vocab(served):
    return served[0].manifest.extent.vocab


@pytest.mark.parametrize(("served", "length", "policy"), HITS, indirect=["served"])
def test_a_hit_gives_the_tokens_of_a_cold_run(served, cold, length, policy):
    prompt = prompt_of(length, vocab(served))
    with flare.Engine(served[1](policy)) as engine:
        first, again = answer(engine, prompt), answer(engine, prompt)
        turn = [*prompt, *first.token_ids, 9, 8, 7]
        after = answer(engine, turn)
    assert first.token_ids == again.token_ids == cold(prompt)
    assert after.token_ids == cold(turn)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, length)
    assert after.usage.cached_tokens == len(prompt) + len(first.token_ids) - 1


@pytest.mark.parametrize(("served", "policy"), [(TINY, ONE), (TINY, ADAPTIVE), (HYBRID, FOUR)], indirect=["served"])
def test_branches_of_one_prefix_give_the_tokens_of_cold_runs(served, cold, policy):
    common = prompt_of(130, vocab(served))
    prompts = [[*common, *prompt_of(20 + salt, vocab(served), salt)] for salt in range(1, 4)]
    prompts += [[*common[:end], *prompt_of(9, vocab(served), end)] for end in (64, 65, 128, 129)]
    with flare.Engine(served[1](policy)) as engine:
        done = [answer(engine, prompt) for prompt in prompts]
    assert [one.token_ids for one in done] == [cold(prompt) for prompt in prompts]
    assert done[0].usage.cached_tokens == 0
    assert done[2].usage.cached_tokens == 128


@pytest.mark.parametrize(("served", "policy"), [(TINY, ONE), (TINY, FOUR), (HYBRID, ADAPTIVE)], indirect=["served"])
def test_an_answer_can_be_gone_on_from_at_a_boundary_that_decoding_crossed(served, cold, policy):
    prompt = prompt_of(50, vocab(served))
    long = replace(GREEDY, max_tokens=100)
    with flare.Engine(served[1](policy)) as engine:
        first = answer(engine, prompt, long)
        other = [*prompt, *first.token_ids[:85], 11, 12]
        done = answer(engine, other)
    assert first.token_ids == cold(prompt, 100)
    assert done.token_ids == cold(other)
    assert done.usage.cached_tokens == 128


@pytest.mark.parametrize(
    ("served", "policy", "cache"),
    [
        (TINY, ONE, "true"),
        (TINY, FOUR, "false"),
        (TINY, ADAPTIVE, "true"),
        (TINY, ADAPTIVE, "false"),
        (HYBRID, FOUR, "true"),
        (HYBRID, ONE, "false"),
    ],
    indirect=["served"],
)
def test_parked_requests_give_the_tokens_of_cold_runs(served, cold, policy, cache):
    prompts = [prompt_of(length, vocab(served), length) for length in PARKED]
    wish = replace(GREEDY, max_tokens=90)
    with flare.Engine(crowded(served[1](policy, f"serving.prefix_cache={cache}"), 5)) as engine:
        handles = [engine.submit(prompt, wish)[0] for prompt in prompts]
        while engine.step():
            engine.check()
        assert engine.stats().preemptions > 0
    assert [handle.completion.token_ids for handle in handles] == [cold(prompt, 90) for prompt in prompts]


def test_a_seed_draws_the_same_tokens_after_a_full_hit_and_after_parking(served):
    """At one fixed width without copies, the draws depend on the seed alone: no counter is lost on the way."""
    keys = (ONE, "serving.history_drafts=false", "serving.context_drafts=false")
    seeded = flare.Sampling(temperature=1.0, top_k=20, seed=5, max_tokens=90, ignore_eos=True)
    prompts = [prompt_of(length, vocab(served), length) for length in PARKED]
    with flare.Engine(served[1](*keys)) as engine:
        alone = [answer(engine, prompt, seeded).token_ids for prompt in prompts]
        again = [answer(engine, prompt, seeded) for prompt in prompts[1:4]]
    assert [one.usage.cached_tokens for one in again] == [*PARKED[1:4]]
    assert [one.token_ids for one in again] == alone[1:4]
    with flare.Engine(crowded(served[1](*keys), 5)) as engine:
        handles = [engine.submit(prompt, seeded)[0] for prompt in prompts]
        while engine.step():
            engine.check()
        assert engine.stats().preemptions > 0
    assert [handle.completion.token_ids for handle in handles] == alone


def test_acceptance_after_a_hit_is_that_of_the_cold_run(served):
    """Everything the drafter reads comes back: with one width the rounds are the same rounds."""
    prompt = prompt_of(67, vocab(served))
    keys = ("serving.fixed_width=4", "serving.history_drafts=false", "serving.context_drafts=false")
    with flare.Engine(served[1](*keys)) as engine:
        first, again = answer(engine, prompt), answer(engine, prompt)
        assert again.usage.cached_tokens == 67
        assert [(row.offered, row.accepted) for row in again.rounds] == [
            (row.offered, row.accepted) for row in first.rounds
        ]
