"""Wishes of a request: ranges, defaults, what the device is told."""

from types import SimpleNamespace

import pytest

from flare.errors import RequestError
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import SAMPLING

LIMITS = SimpleNamespace(vocab=100, logprobs=5)


def resolved(room: int = 50, **wishes):
    return Sampling(**wishes).over(SimpleNamespace(**SAMPLING)).policy(LIMITS, eos_ids=(9,), room_tokens=room)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1), ("temperature", float("nan")), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1),
        ("min_p", -0.1), ("repetition_penalty", 0), ("presence_penalty", 3), ("frequency_penalty", -3), ("top_k", -1),
        ("top_k", 1.5), ("seed", -1), ("seed", 2**63), ("n", 0), ("max_tokens", 0), ("max_tokens", True),
        ("min_tokens", -1), ("logprobs", -1), ("max_draft_tokens", -1), ("stop", [""]), ("stop", 3), ("stop", [1]),
        ("stop_token_ids", 5), ("logit_bias", [1]), ("logit_bias", {1: float("inf")}), ("logit_bias", {1: 1e31}),
        ("logit_bias", {1: 10**400}), ("temperature", 10**400), ("temperature", 1e300), ("repetition_penalty", 1e-300),
        ("ignore_eos", "yes"),
        ("speculation", "off"), ("grammar", ""), ("grammar", 3), ("json_schema", 3), ("json_schema", "{"),
        ("regex", ""),
        ("json_object", "yes"), ("constrain_after", ""), ("cache_salt", 7), ("prompt_logprobs", -1),
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=rf"^sampling\.{name}\b[^\n]*\.$"):
        Sampling(**{name: value})


def test_min_tokens_may_not_exceed_max_tokens():
    with pytest.raises(RequestError, match="min_tokens=5"):
        Sampling(min_tokens=5, max_tokens=4)


def test_unset_fields_take_the_recipes_values_and_set_ones_do_not():
    defaults = SimpleNamespace(**{**SAMPLING, "temperature": 0.7, "top_k": 20, "ignore_eos": True})
    policy = Sampling(temperature=0, ignore_eos=False).over(defaults).policy(LIMITS, (9,), 50)
    assert (policy.temperature, policy.top_k, policy.stop_ids) == (0.0, 20, (9,))


def test_a_constraint_of_the_request_takes_the_place_of_the_recipes():
    recipe = SimpleNamespace(**{**SAMPLING, "regex": "[0-9]", "json_object": None})
    assert Sampling().over(recipe).regex == "[0-9]"
    asked = Sampling(json_object=True).over(recipe)
    assert (asked.regex, asked.json_object) == (None, True)


def test_two_constraints_exclude_each_other():
    with pytest.raises(RequestError, match=r"sampling\.grammar and sampling\.json_object exclude each other"):
        Sampling(grammar="start: /a/", json_object=True)
    assert Sampling(grammar="start: /a/", json_object=False).grammar is not None


def test_the_context_bounds_max_tokens():
    assert resolved(room=7, max_tokens=99).max_tokens == 7
    assert resolved(room=7, max_tokens=3).max_tokens == 3


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(RequestError, match=r"stop_token_ids=100 .*0 to 99"):
        resolved(stop_token_ids=[100])
    with pytest.raises(RequestError, match=r"logit_bias=-1 "):
        resolved(logit_bias={-1: 2.0})


def test_stop_ids_join_the_end_of_text_unless_it_is_ignored():
    assert resolved(stop_token_ids=[4, 9]).stop_ids == (9, 4)
    assert resolved(stop_token_ids=[4], ignore_eos=True).stop_ids == (4,)
    with pytest.raises(RequestError, match="18 ids"):
        resolved(stop_token_ids=list(range(10, 27)))


def test_json_writes_bias_ids_as_text():
    assert resolved(logit_bias={"7": 1.5}).logit_bias == ((7, 1.5),)


def test_more_logprobs_than_prepared_are_refused():
    with pytest.raises(RequestError, match=r"logprobs=6 .*at most 5"):
        resolved(logprobs=6)
    assert (resolved().logprobs, resolved(logprobs=0).logprobs) == (-1, 0)


def test_a_given_seed_counts_up_and_an_unset_one_differs():
    assert [each.seed for each in Sampling(seed=2**63 - 1, n=3).completions()] == [2**63 - 1, 0, 1]
    seeds = {one.policy(LIMITS, (), 5).seed for one in Sampling(n=4).completions()}
    assert len(seeds) == 4 and all(0 <= seed < 2**63 for seed in seeds)
