"""Grammars over a real core in fp32: wide rounds write what one-token decoding writes, valid to the last token."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flare.build import Core
from flare.errors import RequestError
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from tests.recipes.tiny_core import arm, tiny_core
from tests.runtime.constraints.schemas import is_valid, schema

SCHEMAS = 500
WAVE = 20  # requests in the engine at once
PROMPT = "hello hello hello"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tiny") / "model"


@pytest.fixture(scope="module")
def core(folder) -> Iterator[Core]:
    with tiny_core(folder, "serving.history_drafts=true", "serving.fixed_width=null") as core:
        yield core


@pytest.fixture
def wide(core, folder) -> Iterator[Engine]:
    keys = ("serving.adaptive_verification=false", "serving.history_drafts=true", "serving.context_drafts=true")
    with Engine(arm(core, folder, *keys)) as engine:
        yield engine


def one(engine: Engine, prompt: str = PROMPT, **wishes) -> Completion:
    done = engine.generate(prompt, Sampling(**{"temperature": 0, **wishes}))
    assert isinstance(done, Completion)
    return done


def many(engine: Engine, wishes: list[Sampling]) -> list[Completion]:
    handles = [engine.submit(f"hello {index}", sampling)[0] for index, sampling in enumerate(wishes)]
    return engine.wait(handles)


def test_generated_schemas_are_valid_and_the_same_as_one_token_decoding(wide):
    """Half of the answers are in the history before, so that legal copies are offered beside forced tokens."""
    seen, wide_rounds, rounds = Counter(), 0, 0
    for start in range(0, SCHEMAS, WAVE):
        seeds = range(start, start + WAVE)
        wishes = [Sampling(temperature=0, json_schema=schema(seed), max_tokens=120) for seed in seeds]
        plain = many(wide, [Sampling(**{**vars(wish), "speculation": False}) for wish in wishes])
        for seed, done, expected in zip(seeds, many(wide, wishes), plain, strict=True):
            assert expected.speculation.offered == 0 and set(expected.speculation.widths) <= {1}
            assert (done.text, done.token_ids) == (expected.text, expected.token_ids), seed
            assert done.finish_reason == "stop" and is_valid(done.text, schema(seed)), (seed, done.text)
            assert done.usage.completion_tokens == len(done.token_ids) == len(done.sources)
            for source, counts in done.speculation.by_source.items():
                seen[source, "offered"] += counts.offered
                seen[source, "accepted"] += counts.accepted
            wide_rounds += sum(row.offered > 0 for row in done.rounds)
            rounds += len(done.rounds)
    share = wide_rounds / rounds
    print(f"{rounds} rounds, {share:.0%} of them wide; {dict(seen)}")
    assert seen["history", "accepted"] > 0 and seen["forced", "accepted"] > 0
    assert seen["learned", "offered"] == 0
    assert share > 0.4


def test_one_digit_is_corrected_where_the_copy_left_the_grammar(wide):
    """The history holds "abcdefg11z": after the first digit it offers "1z", of which the grammar allows "1"."""
    one_id = wide.vocabulary.encode("1")[0]
    wide.remember(wide.vocabulary.encode("abcdefg11z"))
    done = one(wide, "abcdefg", regex="[0-9]{3}x", logit_bias={one_id: 1e6})
    assert done.text == "111x"
    assert done.rounds[0][1:4] == (1, 1, 2) and done.rounds[0].sources == ("history",)
    assert done.rounds[1].sources == ("forced", "forced") and done.sources[3] == "forced"  # "x" and the end


def test_the_first_token_of_a_prefill_is_masked(wide):
    for digit in "abc":
        assert one(wide, regex=digit, max_tokens=1).text == digit


def test_a_batch_mixes_grammars_and_free_text(wide):
    free = one(wide, max_tokens=20)
    wishes = [Sampling(temperature=0, regex="[0-9]{9}"), Sampling(temperature=0, max_tokens=20)]
    handles = [wide.submit(PROMPT, wish)[0] for wish in wishes]
    digits, beside = wide.wait(handles)
    assert digits.text.isdigit() and len(digits.text) == 9
    assert beside.token_ids == free.token_ids
    assert one(wide, max_tokens=20).token_ids == free.token_ids  # no mask is left in the frames


def test_completions_of_one_prompt_have_matchers_of_their_own(wide):
    done = wide.generate(PROMPT, Sampling(temperature=1000.0, seed=3, n=4, regex="[a-z]{3}[0-9]{2}"))
    assert isinstance(done, list) and len({each.text for each in done}) > 1
    assert all(len(each.text) == 5 and each.text[:3].isalpha() and each.text[3:].isdigit() for each in done)


def test_logprobs_under_a_grammar_are_the_targets_own_at_every_width(wide):
    rule = {"type": "object", "properties": {"hello": {"type": "boolean"}}, "required": ["hello"]}
    wishes = {"json_schema": {**rule, "additionalProperties": False}, "logprobs": 3, "max_tokens": 200}
    plain, broad = one(wide, speculation=False, **wishes), one(wide, **wishes)
    assert plain.logprobs is not None and broad.logprobs is not None
    assert [row.token_id for row in broad.logprobs] == list(broad.token_ids) == list(plain.token_ids)
    for mine, expected in zip(broad.logprobs, plain.logprobs, strict=True):
        assert mine.logprob == pytest.approx(expected.logprob, abs=1e-4) and mine.logprob < 0
        assert [token for token, _ in mine.top] == [token for token, _ in expected.top]
    assert broad.speculation.accepted > 0


def test_logprobs_of_accepted_corrected_and_bonus_tokens_are_those_of_one_token_decoding(wide):
    """Where the copies come from answers with another seed, some are accepted and some are not."""
    for seed in range(3):
        one(wide, max_tokens=60, temperature=300.0, seed=seed)
    wide.remember(one(wide, max_tokens=60, ignore_eos=True).token_ids[:40])
    plain = one(wide, max_tokens=60, ignore_eos=True, logprobs=2, speculation=False)
    broad = one(wide, max_tokens=60, ignore_eos=True, logprobs=2)
    assert broad.speculation.accepted > 10 and broad.token_ids == plain.token_ids
    assert plain.logprobs is not None and broad.logprobs is not None
    for mine, expected in zip(broad.logprobs, plain.logprobs, strict=True):
        assert mine.token_id == expected.token_id and mine.logprob == pytest.approx(expected.logprob, abs=1e-3)
        assert [token for token, _ in mine.top] == [token for token, _ in expected.top]


def test_thinking_is_free_and_the_answer_follows_the_grammar(wide):
    """The marker is what the model writes anyway after some tokens; from there on it must write digits."""
    free = one(wide, max_tokens=40, ignore_eos=True)
    marker = next(free.text[at : at + 2] for at in range(12, 40) if free.text[at : at + 2].isascii())
    begin = free.text.index(marker)
    wishes = {"regex": "[0-9]{4}", "constrain_after": marker, "max_tokens": 80}
    done, plain = one(wide, **wishes), one(wide, **wishes, speculation=False)
    assert begin > 0 and done.text.startswith(free.text[: begin + 2])
    assert done.text[-4:].isdigit() and done.finish_reason == "stop"
    assert done.text.index(marker) + 2 + 4 <= len(done.text) <= begin + 2 + 4 + 3  # at most a token's rest between
    assert plain.token_ids == done.token_ids


def test_an_ignored_end_of_text_ends_with_the_text(wide):
    done = one(wide, regex="[0-9]{3}", ignore_eos=True)
    assert (len(done.token_ids), done.finish_reason, done.usage.completion_tokens) == (3, "stop", 3)


def test_min_tokens_the_grammar_cannot_reach_end_with_the_text(wide):
    done = one(wide, regex="[0-9]{3}", min_tokens=9)
    assert (len(done.text), len(done.token_ids), done.finish_reason) == (3, 3, "stop")
    with pytest.raises(RequestError, match="allows only the empty text"):
        one(wide, grammar='start: ""', min_tokens=1)


def test_a_stop_string_still_cuts_a_constrained_text(wide):
    done = one(wide, regex="[0-9]{3}STOP[0-9]{3}", stop="STOP")
    assert len(done.text) == 3 and done.finish_reason == "stop"


def test_a_budget_smaller_than_the_text_ends_by_length(wide):
    done = one(wide, regex="[0-9]{30}", max_tokens=7)
    assert (done.finish_reason, len(done.token_ids)) == ("length", 7)


@pytest.mark.parametrize(
    ("wishes", "explained"),
    [
        ({"regex": "a(b"}, "sampling.regex cannot be followed"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "sampling.json_schema cannot be followed"),
        ({"constrain_after": "</think>"}, "needs what begins after it"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_before_anything_runs(wide, wishes, explained):
    with pytest.raises(RequestError, match=explained):
        wide.generate(PROMPT, Sampling(**wishes))
    assert wide.idle and wide.scheduler.waiting == 0
    assert one(wide, regex="ok").text == "ok"


def test_a_request_that_drafts_nothing_else_is_offered_forced_tokens(core, folder):
    keys = ("serving.adaptive_verification=false", "serving.history_drafts=false", "serving.context_drafts=false")
    with Engine(arm(core, folder, *keys)) as engine:
        done = one(engine, regex="(yes|no), hello hello hello")
        assert done.speculation.by_source.keys() == {"forced"} and done.speculation.accepted > 5
        assert one(engine, max_tokens=5).speculation.reason is not None
