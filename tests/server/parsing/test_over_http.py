"""Calls and thoughts as the official client sees them, from scripted tokens and from a real model under a grammar."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from flare.build import prepare
from flare.config.compose import compose
from flare.server.service import Service
from tests.runtime.scripted_core import ScriptedCore, saying
from tests.runtime.scripted_device import scripted_manifest
from tests.server.parsing.answers import PLAIN, hermes
from tests.server.parsing.models import vocabulary
from tests.server.serving import END, PacedDevice, Served, configured, running

ASK: list[Any] = [{"role": "user", "content": "How warm? " * 3}]
FUNCTION = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
ANSWER = (
    f"<think>\nHow warm? How warm?\n</think>\n\nOn it.\n{hermes('get_weather', PLAIN)}\n{hermes('get_weather', PLAIN)}"
)


@contextmanager
def answering(answer: str, *overrides: str) -> Iterator[Served]:
    """A server whose model has the Hermes template and says that to `ASK` with `TOOLS`."""
    words = vocabulary("hermes")
    prompt_tokens = len(words.chat(ASK, tools=TOOLS))
    config = configured("serving.prefix_cache=false", "sampling.max_tokens=400", *overrides)
    device = PacedDevice(scripted_manifest(vocab=300, context=2048), saying(answer, prompt_tokens, END))
    core = ScriptedCore(device, words, config)
    with running(Service(config, lambda: nullcontext(core)), device) as served:  # pyright: ignore[reportArgumentType]
        yield served


def whole(served: Served, **more: Any) -> dict[str, Any]:
    asking: Any = {"model": "smollm2", "messages": ASK, "tools": TOOLS, **more}
    done = served.client().chat.completions.create(**asking)
    message: Any = done.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert done.usage is not None
    assert done.usage.completion_tokens_details is not None
    return {
        "content": message.content,
        "reasoning": getattr(message, "reasoning_content", None),
        "calls": calls,
        "finish": done.choices[0].finish_reason,
        "reasoning_tokens": done.usage.completion_tokens_details.reasoning_tokens,
    }


def streamed(served: Served, **more: Any) -> dict[str, Any]:
    asking: Any = {"model": "smollm2", "messages": ASK, "tools": TOOLS, "stream": True, **more}
    asking["stream_options"] = {"include_usage": True}
    content, reasoning, calls, finish, count = "", "", [], None, None
    for chunk in served.client().chat.completions.create(**asking):
        if chunk.usage is not None:
            count = chunk.usage.completion_tokens_details.reasoning_tokens
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert call.index == len(calls)
                    calls.append([call.function.name, ""])
                calls[call.index][1] += call.function.arguments or ""
    return {
        "content": content or None,
        "reasoning": reasoning or None,
        "calls": [tuple(call) for call in calls],
        "finish": finish,
        "reasoning_tokens": count,
    }


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_calls_and_thoughts_are_the_same_streamed_or_whole_in_rounds_of_any_width(width):
    with answering(ANSWER, f"serving.fixed_width={width}") as served:
        answer = whole(served)
        assert answer == streamed(served)
    assert (answer["content"], answer["reasoning"], answer["finish"]) == ("On it.", "How warm? How warm?", "tool_calls")
    assert [(name, json.loads(arguments)) for name, arguments in answer["calls"]] == [("get_weather", PLAIN)] * 2
    assert answer["reasoning_tokens"] == len("<think>\nHow warm? How warm?\n</think>")


def test_a_call_cut_by_the_limit_says_so():
    arguments = hermes("get_weather", PLAIN)
    with answering(arguments) as served:
        for ask in (whole, streamed):
            answer = ask(served, max_tokens=arguments.index("days"))
            assert answer["finish"] == "length"
            assert answer["calls"] == [("get_weather", '{"city": "Zürich", ')]


def test_thoughts_cut_by_the_limit_are_no_more_than_the_tokens():
    with answering(f"<think>{'on and on ' * 40}") as served:
        answer = whole(served, max_tokens=64)
        assert (answer["content"], answer["finish"], answer["reasoning_tokens"]) == ("", "length", 64)


def test_a_small_model_calls_under_a_grammar(smollm2_gguf):
    overrides = ["serving.port=0", "serving.concurrency=1", "preparation.context_length=512", "preparation.threads=2"]
    service = Service(compose("smollm2", overrides), lambda: prepare("smollm2", overrides))
    messages = [{"role": "user", "content": "How will the weather be in Paris in the next 3 days?"}]
    with running(service, seconds=120) as served:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            asking = {"messages": messages, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
            answer = whole(served, **asking, max_tokens=80)
            assert answer["finish"] == "tool_calls"
            assert [name for name, _ in answer["calls"]] == ["get_weather"]
            arguments = json.loads(answer["calls"][0][1])
            assert set(arguments) == {"city", "days"}
            assert isinstance(arguments["days"], int)
            assert answer["content"] is None
        assert streamed(served, **asking, max_tokens=80) == answer
