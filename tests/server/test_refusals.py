"""What is wrong with a request is said of the right field, with what is allowed and a code of the one table."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from flare.server.wire.errors import STATUSES, Code, shortened
from tests.server.serving import Served, answering, scripted

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
PLAIN: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": HELLO}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOOL_OF_NO_TYPE = {"type": "function", "function": {"name": "look", "parameters": {"type": "nope"}}}
SCHEMA_THAT_IS_NONE = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}
IDS = "token ids go from 0 to 299"

# change → the field blamed, its code, and what the sentence says
REFUSED: list[tuple[str, dict[str, Any], str | None, str, str]] = [
    (COMPLETIONS, {"repetition_penalty": 1e37}, "repetition_penalty", "invalid_value", "must be at most 1.26765e+30"),
    (COMPLETIONS, {"repetition_penalty": 0}, "repetition_penalty", "invalid_value", "greater than 0"),
    (COMPLETIONS, {"repetition_penalty": 1e-50}, "repetition_penalty", "invalid_value", "at least 1.4013e-45"),
    (COMPLETIONS, {"temperature": 1e37}, "temperature", "invalid_value", "must be at most 1.26765e+30"),
    (COMPLETIONS, {"temperature": 10**400}, "temperature", "invalid_value", "a number that float64 holds"),
    (COMPLETIONS, {"top_p": 1e-50}, "top_p", "invalid_value", "at least 1.4013e-45"),
    (COMPLETIONS, {"min_tokens": 10**30}, "min_tokens", "invalid_value", "at most 9223372036854775807"),
    (COMPLETIONS, {"min_tokens": 5, "max_tokens": 2}, "min_tokens", "invalid_value", "at most 2, like max_tokens"),
    (COMPLETIONS, {"max_tokens": 10**30}, "max_tokens", "context_length_exceeded", "max_tokens may be at most 510"),
    (CHAT, {"max_completion_tokens": 600}, "max_completion_tokens", "context_length_exceeded", "may be at most"),
    (COMPLETIONS, {"n": 100}, "n", "too_many_completions", "100 completions at once"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt[0]", "invalid_value", f"prompt[0]=-1 is not allowed: {IDS}"),
    (COMPLETIONS, {"prompt": [1, 300]}, "prompt[1]", "invalid_value", IDS),
    (COMPLETIONS, {"prompt": [[1], [10**30]]}, "prompt[1][0]", "invalid_value", IDS),
    (
        COMPLETIONS,
        {"prompt": [1, "a"]},
        "prompt[1]",
        "invalid_value",
        'prompt[1]="a" is not allowed: it must be a whole',
    ),
    (COMPLETIONS, {"prompt": ["a", 1]}, "prompt[1]", "invalid_value", "must be a string"),
    (COMPLETIONS, {"prompt": []}, "prompt", "invalid_value", "must be a list that is not empty"),
    (
        COMPLETIONS,
        {"prompt": {}},
        "prompt",
        "invalid_value",
        "a string, a list of strings, a list of token ids or a list",
    ),
    (COMPLETIONS, {"prompt": ["hi", ""]}, "prompt[1]", "invalid_value", "write at least one character"),
    (COMPLETIONS, {"stop": [""]}, "stop[0]", "invalid_value", "a string of at least 1 character(s)."),
    (COMPLETIONS, {"stop": 5}, "stop", "invalid_value", "a string or a list"),
    (COMPLETIONS, {"stop_token_ids": [1, 300]}, "stop_token_ids[1]", "invalid_value", IDS),
    (COMPLETIONS, {"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value", IDS),
    (COMPLETIONS, {"logit_bias": {"300": 1}}, "logit_bias", "invalid_value", f'has the key "300": {IDS}'),
    (COMPLETIONS, {"logit_bias": {"x": 1}}, "logit_bias", "invalid_value", 'has the key "x": keys must be token ids'),
    (
        COMPLETIONS,
        {"logit_bias": {"1": None}},
        'logit_bias["1"]',
        "invalid_value",
        "=null is not allowed: it must be a",
    ),
    (
        COMPLETIONS,
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "invalid_value",
        "one of 'text', 'json_o",
    ),
    (COMPLETIONS, {"response_format": {}}, "response_format.type", "missing_field", "is missing"),
    (
        COMPLETIONS,
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.name",
        "missing_field",
        "response_format.json_schema.name is missing.",
    ),
    (
        COMPLETIONS,
        {"response_format": {"type": "text", "x": 1}},
        "response_format.x",
        "unsupported_field",
        "not support",
    ),
    (COMPLETIONS, {"Temperature": 1}, "Temperature", "unsupported_field", "Temperature is not supported."),
    (COMPLETIONS, {"a b": 1}, "a b", "unsupported_field", "a b is not supported."),
    (COMPLETIONS, {"str": 1}, "str", "unsupported_field", "str is not supported."),
    (COMPLETIONS, {"regex": "("}, "regex", "invalid_value", "regex cannot be followed"),
    (COMPLETIONS, {"json_schema": {"type": "nope"}}, "json_schema", "invalid_value", "json_schema cannot be followed"),
    (
        COMPLETIONS,
        {"response_format": SCHEMA_THAT_IS_NONE},
        "response_format.json_schema.schema",
        "invalid_value",
        "response_format.json_schema.schema cannot be followed",
    ),
    (
        CHAT,
        {"tools": [TOOL_OF_NO_TYPE], "tool_choice": "required"},
        "tools",
        "invalid_value",
        "tools cannot be followed",
    ),
    (CHAT, {"tools": [TOOL], "regex": "[/"}, None, "invalid_value", "tools and regex cannot be followed"),
    (
        CHAT,
        {"tools": [TOOL], "response_format": SCHEMA_THAT_IS_NONE},
        None,
        "invalid_value",
        "tools and response_format.json_schema.schema cannot be followed",
    ),
    (
        CHAT,
        {"tools": [TOOL_OF_NO_TYPE], "response_format": {"type": "json_object"}},
        None,
        "invalid_value",
        "tools and response_format cannot be followed",
    ),
    (
        CHAT,
        {"tools": [TOOL], "tool_choice": "none", "grammar": "start: ("},
        "grammar",
        "invalid_value",
        "grammar cannot be followed",
    ),
    (CHAT, {"tools": [TOOL], "grammar": 'start: "a"'}, "grammar", "invalid_value", "grammar cannot be combined with"),
    (COMPLETIONS, {"constrain_after": "x"}, "constrain_after", "invalid_value", "needs what begins after it"),
    (COMPLETIONS, {"regex": "a", "grammar": "b"}, "grammar", "invalid_value", "regex and grammar exclude each other"),
    (COMPLETIONS, {"cache_salt": "x" * 9999}, "cache_salt", "invalid_value", "at most 1024 characters"),
    (COMPLETIONS, {"stream_options": {}}, "stream_options", "invalid_value", "stream_options needs stream=true"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value", "'user' needs content"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "invalid_value",
        "must be 'text'",
    ),
    (
        CHAT,
        {"tools": [TOOL], "tool_choice": {"type": "function"}},
        "tool_choice.function",
        "missing_field",
        "is missing",
    ),
    (CHAT, {"tools": [TOOL], "tool_choice": 5}, "tool_choice", "invalid_value", "'required' or an object"),
    (CHAT, {"tool_choice": "auto"}, "tool_choice", "invalid_value", "tool_choice needs tools"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs", "invalid_value", "needs logprobs=true"),
    (CHAT, {"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "invalid_value", "differ"),
    ("/tokenize", {}, "prompt", "invalid_value", "Give a prompt or messages."),
    ("/tokenize", {"prompt": "a", "messages": HELLO}, "messages", "invalid_value", "exclude each other"),
    ("/tokenize", {"messages": HELLO * 3000}, "messages", "too_many_messages", "at most 2048"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "invalid_value", IDS),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(answering({"hi": "there"})) as served:
        yield served


@pytest.mark.parametrize(("path", "change", "param", "code", "said"), REFUSED)
def test_a_refusal_says_what_is_wrong_and_what_is_allowed(served, path, change, param, code, said):
    refused = served.post(path, PLAIN.get(path, {}) | change)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, param, code), error
    assert said in error["message"] and error["type"] == "invalid_request_error", error
    assert served.post(COMPLETIONS, PLAIN[COMPLETIONS]).json()["choices"][0]["text"] == "there"


def test_numbers_that_json_lacks_are_named(served):
    def told(body: bytes) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return httpx.post(served.url + COMPLETIONS, content=body, headers=headers).json()["error"]

    assert "NaN and Infinity are no numbers in JSON" in told(b'{"prompt": "a", "temperature": NaN}')["message"]
    assert "needs its other half" in told(b'{"prompt": "\\ud800"}')["message"]
    assert told(b'{"prompt": "a", "temperature": 1e400}')["param"] == "temperature"
    assert told(b"[" * 100_000)["code"] == "too_deep"


def test_paths_and_methods_that_are_not_there(served):
    unknown, method = served.get("/v1/chat/completion"), served.get(COMPLETIONS)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_path")
    assert "did you mean /v1/chat/completions?" in unknown.json()["error"]["message"]
    assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
    assert method.json()["error"]["message"] == "GET /v1/completions is not offered: use POST."


def test_a_body_of_another_kind_has_a_code(served):
    refused = httpx.post(served.url + COMPLETIONS, content=b"{}", headers={"content-type": "text/plain"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
    bare = httpx.post(served.url + COMPLETIONS, content=b"{}")
    assert "but no content type was sent" in bare.json()["error"]["message"]


def test_an_object_of_many_unknown_keys_is_refused_for_one(served):
    body = {"prompt": "hi", "stream": True, "stream_options": {f"k{index}": 1 for index in range(50)}}
    refused = served.post(COMPLETIONS, body).json()["error"]
    assert refused["param"] == "stream_options.k0" and refused["code"] == "unsupported_field"


def test_every_status_belongs_to_a_code():
    assert set(STATUSES) <= set(Code) and all(400 <= status < 600 for status in STATUSES.values())


def test_values_are_shown_as_json_and_cut():
    assert [shortened(value) for value in (None, True, "é", [1, None])] == ["null", "true", '"é"', "[1, null]"]
    assert len(shortened("x" * 10**6)) == len(shortened([[1] * 1000] * 1000)) == 81
