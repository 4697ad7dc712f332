"""Constraints and what else happens to a request: learned drafts beside it, parking, cached prefixes, scores."""

from collections.abc import Iterator

import pytest

from flare.build import Core, prepare
from flare.errors import RequestError
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from tests.recipes.tiny_core import arm, tiny_core

LONG = "hello hello, " * 30
FIXED = "serving.adaptive_verification=false"


@pytest.fixture(scope="module")
def learning() -> Iterator[Core]:
    with prepare("qwen38_small", ["preparation.threads=1", "serving.concurrency=2", FIXED]) as core:
        yield core


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny") / "model"


@pytest.fixture(scope="module")
def scoring(folder) -> Iterator[Core]:
    chunks = "preparation.prefill_capacities=[16,64]"
    with tiny_core(folder, "preparation.prompt_logprobs=true", "serving.prefix_cache=true", chunks) as core:
        yield core


def one(engine: Engine, prompt, **wishes) -> Completion:
    done = engine.generate(prompt, Sampling(**{"temperature": 0, **wishes}))
    assert isinstance(done, Completion)
    return done


def test_a_drafter_rests_under_a_grammar_and_the_result_says_so(learning):
    with Engine(learning) as engine:
        free = one(engine, "hello", max_tokens=30)
        handles = [
            engine.submit("hello", Sampling(temperature=0, regex="[0-9]{12}, (yes|no), hello"))[0],
            engine.submit("hello", Sampling(temperature=0, max_tokens=30))[0],
        ]
        constrained, beside = engine.wait(handles)
        plain = one(engine, "hello", regex="[0-9]{12}, (yes|no), hello", speculation=False)
    assert beside.token_ids == free.token_ids and beside.speculation.by_source["learned"].accepted > 0
    assert constrained.token_ids == plain.token_ids and constrained.text[-5:] == "hello"
    assert set(constrained.speculation.by_source) <= {"forced", "context", "history"}
    assert constrained.speculation.by_source["forced"].accepted > 0
    assert constrained.speculation.reason == "a grammar is drafted for by copies and forced tokens only"
    assert plain.speculation.reason == "speculation: false"


def test_thinking_draws_no_learned_draft_past_its_marker(learning):
    wishes = {"regex": "[0-9]{4}", "constrain_after": "</think>", "max_tokens": 30}
    with Engine(learning) as engine:
        done = one(engine, "hello", **wishes)
        free = one(engine, "hello", max_tokens=30)
    assert done.token_ids == free.token_ids and "learned" not in done.speculation.by_source


@pytest.mark.parametrize("steps", [2, 4, 6])
def test_a_parked_request_goes_on_where_its_grammar_stood(scoring, folder, steps):
    rule = {"regex": '\\{"a": "[a-z]{40}", "b": \\[[0-9]{6}\\]\\}', "temperature": 0, "max_draft_tokens": 2}
    with Engine(arm(scoring, folder, FIXED)) as engine:
        expected = one(engine, "hello there", **rule)
        request = engine.submit("hello there", Sampling(**rule))[0]
        for _ in range(steps):
            engine.step()
        assert request.generated_tokens and not request.finished
        request.parking = True
        done = engine.wait([request])[0]
        assert request.preemptions == 1
    assert done.token_ids == expected.token_ids and done.text.startswith('{"a": "')


def test_the_first_token_after_a_cached_prefix_is_masked(scoring, folder):
    with Engine(arm(scoring, folder, FIXED, "serving.prefix_cache=true")) as engine:
        one(engine, LONG, max_tokens=4)
        done = one(engine, LONG, regex="[0-9]{5}")
        again = one(engine, LONG, regex="x[a-f]{3}", cache_salt="another tenant")
    assert done.usage.cached_tokens > 0 and done.text.isdigit() and len(done.text) == 5
    assert again.usage.cached_tokens == 0 and again.text.startswith("x")


@pytest.mark.parametrize("length", [1, 2, 16, 17, 40])
def test_prompt_logprobs_are_those_of_the_prompts_own_tokens(scoring, folder, length):
    """The oracle generates each prompt token after the ones before it: a bias draws it, its logprob stays raw."""
    with Engine(arm(scoring, folder, FIXED)) as engine:
        ids = engine.vocabulary.encode(LONG)[:length]
        done = one(engine, ids, max_tokens=3, prompt_logprobs=2, logprobs=0)
        plain = one(engine, ids, max_tokens=3, logprobs=0)
        assert done.prompt_logprobs is not None and len(done.prompt_logprobs) == length
        assert done.prompt_logprobs[0] is None and plain.prompt_logprobs is None
        assert (done.token_ids, done.logprobs) == (plain.token_ids, plain.logprobs)
        for index, found in list(enumerate(done.prompt_logprobs))[1::5]:
            token = ids[index]
            forced = one(engine, ids[:index], max_tokens=1, logprobs=2, logit_bias={token: 1e9}, ignore_eos=True)
            assert forced.logprobs is not None and found is not None
            expected = forced.logprobs[0]
            assert found.token_id == token == expected.token_id
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-3)
            assert [alternative for alternative, _ in found.top] == [alternative for alternative, _ in expected.top]


def test_a_scored_prompt_may_have_a_grammar_and_is_never_restored(scoring, folder):
    with Engine(arm(scoring, folder, FIXED, "serving.prefix_cache=true")) as engine:
        one(engine, LONG, max_tokens=2)
        done = one(engine, LONG, regex="[0-9]{3}", prompt_logprobs=0)
    assert done.text.isdigit() and done.usage.cached_tokens == 0
    assert done.prompt_logprobs is not None and len(done.prompt_logprobs) == done.usage.prompt_tokens
    assert all(row is not None and row.top == () and row.logprob <= 0 for row in done.prompt_logprobs[1:])


def test_prompt_logprobs_without_their_graphs_are_one_sentence(learning):
    with Engine(learning) as engine, pytest.raises(RequestError, match=r"preparation\.prompt_logprobs=true"):
        one(engine, "hello", prompt_logprobs=1)
