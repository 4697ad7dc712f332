"""Every field that the OpenAPI document offers changes something, or is answered 400; over a tiny real core in fp32."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flare.build import prepare
from flare.config.compose import compose
from flare.server.routes.asking import encoded
from flare.server.service import Service
from tests.checkpoint.tiny import weights, write_folder
from tests.recipes.tiny_core import tiny_overrides
from tests.server.serving import Served, byte_vocabulary, running, until

PLAIN: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello hello", "max_tokens": 12, "seed": 3, "temperature": 1.0},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hello hello"}], "max_tokens": 12, "seed": 3, "temperature": 1.0,
    },
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [40, 50]},
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
LONG = {"max_tokens": 40, "temperature": 0}
DRAFTED = LONG | {"logit_bias": {"70": 100}}  # one token again and again, which is copied

# Field → (what else the request says, a value, another value): the answers must differ.
SAMPLED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "n": ({}, 1, 2),
    "max_tokens": ({}, 3, 5),
    "min_tokens": ({"regex": "a{1,9}", "temperature": 0}, 0, 9),
    "temperature": ({}, 0, 1.5),
    "top_p": ({"temperature": 2}, 1.0, 0.01),
    "top_k": ({"temperature": 2}, 0, 1),
    "min_p": ({"temperature": 2}, 0.0, 1.0),
    "seed": ({"temperature": 2}, 1, 2),
    "stop": ({}, None, "first"),
    "stop_token_ids": ({}, None, "first id"),
    "ignore_eos": ({"regex": "ab"}, False, True),
    "presence_penalty": (LONG, 0, 2),
    "frequency_penalty": (LONG, 0, 2),
    "repetition_penalty": (LONG, 1, 1.9),
    "logit_bias": ({}, None, {"70": 100}),
    "regex": ({}, None, "[0-9]{4}"),
    "grammar": ({}, None, 'start: "yes" | "no"'),
    "json_schema": ({}, None, SCHEMA),
    "response_format": ({}, {"type": "text"}, {"type": "json_object"}),
    "constrain_after": ({"regex": "[0-9]{4}"}, None, "</think>"),
    "speculation": (DRAFTED | {"speculation_metrics": "summary"}, True, False),
    "max_draft_tokens": (DRAFTED | {"speculation_metrics": "summary"}, 1, 0),
    "return_token_ids": ({}, False, True),
    "return_provenance": ({}, False, True),
    "speculation_metrics": (DRAFTED, "none", "detailed"),
    "stream": ({}, False, True),
    "stream_options": ({"stream": True}, None, {"include_usage": True}),
    "logprobs": ({}, None, 2),
    "echo": ({}, False, True),
    "prompt": ({}, "hello", "world"),
}
CHAT: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "messages": ({}, PLAIN["/v1/chat/completions"]["messages"], [{"role": "system", "content": "other"}]),
    "max_completion_tokens": ({"max_tokens": None}, 3, 5),
    "logprobs": ({}, False, True),
    "top_logprobs": ({"logprobs": True}, 1, 3),
    "tools": ({"tool_choice": "required", "max_tokens": 60}, None, [TOOL]),
    "tool_choice": ({"tools": [TOOL], "max_tokens": 60}, "none", "required"),
}
TOKENS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "messages": ({"prompt": None}, [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]),
    "add_generation_prompt": ({"prompt": None, "messages": [{"role": "user", "content": "a"}]}, True, False),
    "return_token_strs": ({}, False, True),
    "prompt": ({}, "hello", "world"),
    "tokens": ({}, [40], [41]),
}
# What an answer alone cannot show is shown by another test of this file or of the room, named here.
ELSEWHERE = {
    "model": "test_openai_client",
    "user": "test_the_user_is_in_the_log",
    "cache_salt": "test_a_salt_keeps_prefixes_apart",
    "parallel_tool_calls": "parsing",
    "add_special_tokens": "test_the_start_of_a_text_can_be_left_out",
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("tiny") / "model"
    # Fixed widths and no shared history: what a seed draws does not depend on what was asked before.
    overrides = [
        *tiny_overrides(folder), "serving.concurrency=4", "serving.port=0", "preparation.prompt_logprobs=true",
        "serving.adaptive_verification=false", "serving.history_drafts=false", "sampling.top_k=0", "sampling.top_p=1",
    ]  # fmt: skip
    drawn = weights(seed=4)
    write_folder(
        folder, drawn | {"lm_head.weight": drawn["lm_head.weight"] / 64}
    )  # a law that leaves something to draw
    with running(Service(compose("smollm2", overrides), lambda: prepare("smollm2", overrides)), seconds=60) as served:
        yield served


def fields(served: Served, path: str) -> list[str]:
    document = served.get("/openapi.json").json()
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return list(document["components"]["schemas"][content.rpartition("/")[2]]["properties"])


def said(served: Served, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and answer without what differs between any two responses."""
    answer = served.post(path, {name: value for name, value in body.items() if value is not None})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith(("data: {", "{"))]
    documents = [json.loads(line) for line in lines]
    for document in documents:
        for name in ("id", "created"):
            document.pop(name, None)
        for choice in document.get("choices", []):
            for call in (choice.get("message") or {}).get("tool_calls") or []:
                call.pop("id")
    return answer.status_code, json.dumps(documents)


@pytest.mark.parametrize("path", PLAIN)
def test_every_offered_field_changes_something_or_is_refused(served, path):
    table = {"/v1/completions": SAMPLED, "/v1/chat/completions": SAMPLED | CHAT}.get(path, TOKENS)
    idle = []
    for name in fields(served, path):
        if name in ELSEWHERE:
            continue
        more, one, other = table[name]
        if path == "/v1/completions" and name == "stop":
            other = served.post(path, PLAIN[path]).json()["choices"][0]["text"][:2]
        elif name == "stop":
            other = served.post(path, PLAIN[path]).json()["choices"][0]["message"]["content"][:2]
        elif name == "stop_token_ids":
            other = served.post(path, PLAIN[path] | {"return_token_ids": True}).json()["choices"][0]["token_ids"][:1]
        answers = [said(served, path, {**PLAIN[path], **more, name: value}) for value in (one, other)]
        if answers[0] == answers[1]:
            idle.append(name)
        assert max(status for status, _ in answers) in (200, 400), (name, answers)
        assert min(status for status, _ in answers) == 200, (name, answers)
    assert idle == []


@pytest.mark.parametrize("path", PLAIN)
def test_a_field_that_is_not_offered_is_refused_by_name(served, path):
    refused = served.post(path, PLAIN[path] | {"surprise": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "surprise")


@pytest.mark.parametrize("path", list(PLAIN)[:2])
@pytest.mark.parametrize("name", ["n", "seed", "stop", "logit_bias", "stream", "response_format", "user", "max_tokens"])
def test_null_is_the_same_as_left_out(served, path, name):
    plain = {key: value for key, value in PLAIN[path].items() if key != name} | {"temperature": 0, "max_tokens": 9}
    if name == "max_tokens":
        plain |= {"stop": "\n", "max_tokens": None}
    statuses = [served.post(path, body).status_code for body in (plain | {name: None}, plain)]
    assert statuses == [200, 200]


def test_an_engine_at_rest_reports_all_slots_free(served):
    served.post("/v1/completions", PLAIN["/v1/completions"])
    until(lambda: served.engine.stats.free_slots == 4 and served.engine.stats.launches_in_flight == 0)


def test_a_salt_keeps_prefixes_apart(served):
    def cached(**more: Any) -> int:
        body = {"prompt": "salt " * 60, "max_tokens": 2, **more}
        return served.post("/v1/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(), cached(cache_salt="a") < 64, cached() > 64, cached(cache_salt="a") > 64] == [0, True, True, True]


def test_the_user_is_in_the_log(served, caplog):
    with caplog.at_level("INFO", "flare.server"):
        served.post("/v1/completions", PLAIN["/v1/completions"] | {"user": 'ann\n"x"'})
    assert "POST /v1/completions 200" in caplog.text and r'user="ann\n\"x\""' in caplog.text


def test_an_echo_has_the_log_probabilities_of_its_prompt(served):
    body = {"prompt": "hello", "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 2}
    choice = served.post("/v1/completions", body).json()["choices"][0]
    found, prompt = choice["logprobs"], served.post("/tokenize", {"prompt": "hello"}).json()["count"]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert all(value <= 0 for value in found["token_logprobs"][1:]) and len(found["tokens"]) == prompt + 3
    assert choice["text"].startswith("hello")
    events = said(served, "/v1/completions", body | {"stream": True})[1]
    assert json.loads(events)[0]["choices"][0]["logprobs"] == found


@pytest.mark.parametrize("path", list(PLAIN)[:2])
def test_constrained_text_obeys_and_streams_to_the_same(served, path):
    asked = PLAIN[path] | {
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    }
    choice = served.post(path, asked).json()["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert list(json.loads(text)) == ["a"] and choice["finish_reason"] == "stop"
    chunks = json.loads(said(served, path, asked | {"stream": True})[1])
    pieces = [
        piece.get("text", piece.get("delta", {}).get("content") or "") for chunk in chunks for piece in chunk["choices"]
    ]
    assert "".join(pieces) == text


def test_the_drafts_of_a_response_are_told_in_vllms_shape(served):
    body = {"prompt": "hello", **DRAFTED}
    for stream in (False, True):
        asked = body | {"stream": stream, "speculation_metrics": "detailed"}
        (told,) = [
            document["metrics"]
            for document in json.loads(said(served, "/v1/completions", asked)[1])
            if "metrics" in document
        ]
        drafts = told["speculative_decoding"]
        accepted, drafted, steps = (
            drafts[f"num_{name}"] for name in ("accepted_draft_tokens", "draft_tokens", "spec_steps")
        )
        assert len(drafts["acceptance_histogram"]) == drafts["num_spec_tokens"] + 1 == 8
        assert sum(drafts["acceptance_histogram"]) == steps == len(drafts["per_step_accepted"]) > 0
        assert sum(drafts["per_step_accepted"]) == accepted and sum(drafts["per_step_drafted"]) == drafted
        assert drafts["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
        assert drafts["draft_acceptance_rate"] == pytest.approx(accepted / drafted)
    silent = served.post("/v1/completions", body | {"speculation": False, "speculation_metrics": "summary"}).json()
    assert "metrics" not in silent
    assert set(drafts) - {"per_step_accepted", "per_step_drafted"} == set(
        served.post("/v1/completions", body | {"speculation_metrics": "summary"}).json()["metrics"][
            "speculative_decoding"
        ]
    )


def test_provenance_has_the_text_and_source_of_every_token(served):
    body = {"prompt": "hello", "return_provenance": True, **DRAFTED}
    choice = served.post("/v1/completions", body).json()["choices"][0]
    assert "".join(entry["text"] for entry in choice["provenance"]) == choice["text"]
    assert {entry["source"] for entry in choice["provenance"]} >= {"prefill", "context"}


@pytest.mark.parametrize("path", list(PLAIN)[:2])
def test_equal_seeds_stream_what_is_answered_whole(served, path):
    whole = served.post(path, PLAIN[path] | {"speculation": False}).json()["choices"][0]
    chunks = json.loads(said(served, path, PLAIN[path] | {"stream": True, "speculation": False})[1])
    pieces = [
        piece.get("text", piece.get("delta", {}).get("content") or "") for chunk in chunks for piece in chunk["choices"]
    ]
    assert "".join(pieces) == (whole["text"] if "text" in whole else whole["message"]["content"])


def test_the_start_of_a_text_can_be_left_out():
    vocabulary = replace(byte_vocabulary(), bos_id=257, add_bos=True)
    assert encoded("ab", vocabulary) == [257, 97, 98] and encoded("ab", vocabulary, with_start=False) == [97, 98]
