"""Tool calls as a Lark grammar: free text or calls of declared tools, each with arguments of its own JSON schema.

A call is what chat templates show models: markers around `{"name": NAME, "arguments": {…}}`, or, where the opening
marker holds `{name}`, around the arguments alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from flare.errors import RequestError
from flare.runtime.constraints.wishes import bounded

NAME = "{name}"


@dataclass(frozen=True)
class Tool:
    """A function the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


@dataclass(frozen=True)
class ToolMarkers:
    """How a model writes a call.

    Attributes:
        begin, end: text around it; `begin` may hold `{name}`.
        between: text between two calls.
        control: ids of markers that are control tokens of the vocabulary, by the name they have in `begin` and `end`.
    """

    begin: str = "<tool_call>\n"
    end: str = "\n</tool_call>"
    between: str = "\n"
    control: Mapping[str, int] = field(default_factory=dict)


class Named(NamedTuple):
    """The choice of one tool."""

    name: str


ToolChoice = Literal["auto", "required"] | Named
"""Text or calls as the model likes, at least one call, or one call of a tool."""


def tool_grammar(
    tools: Sequence[Tool], choice: ToolChoice = "auto", markers: ToolMarkers | None = None, *, parallel: bool = True
) -> str:
    """The Lark grammar of an answer, for `sampling.grammar`.

    Args:
        parallel: several calls may follow each other; a named choice is always a single one.

    Raises:
        RequestError: no tools, two of one name, or a choice that is none of them.
    """
    markers = markers or ToolMarkers()
    called = _called(tools, choice)
    lines = [f"call_{index}: {_call(tool, markers)}" for index, tool in enumerate(called)]
    lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(called))))
    several = parallel and not isinstance(choice, Named)
    further = f" ({_spelled(markers.between, markers)} {_spelled(_trigger(markers), markers)} call)*" if several else ""
    lines.append(f"calls: call{further}")
    return "\n".join([*(_free_start(markers) if choice == "auto" else _called_start(markers)), *lines]) + "\n"


def _called(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that may be called."""
    names = [tool.name for tool in tools]
    if not tools:
        raise RequestError("A tool grammar needs at least one tool.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"Two tools are called {twice!r}: names must differ.")
    if not isinstance(choice, Named):
        return list(tools)
    if choice.name not in names:
        near = get_close_matches(choice.name, names, 1, 0)
        raise RequestError(f"There is no tool {choice.name!r}; did you mean {near[0] if near else names[0]!r}?")
    return [tool for tool in tools if tool.name == choice.name]


def _trigger(markers: ToolMarkers) -> str:
    """What starts a call and is never free text: the opening marker up to the name, without its last blanks."""
    return markers.begin.partition(NAME)[0].rstrip()


def _call(tool: Tool, markers: ToolMarkers) -> str:
    """A call behind its trigger."""
    rest = markers.begin[len(_trigger(markers)) :]
    arguments = f"%json {json.dumps(bounded(tool.parameters))}"
    if NAME in markers.begin:
        return f"{_spelled(rest.replace(NAME, tool.name), markers)} {arguments} {_spelled(markers.end, markers)}"
    head = f'{rest}{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
    return f"{_spelled(head, markers)} {arguments} {_spelled('}' + markers.end, markers)}"


def _called_start(markers: ToolMarkers) -> list[str]:
    return [f"start: {_spelled(_trigger(markers), markers)} calls"]


def _free_start(markers: ToolMarkers) -> list[str]:
    """Free text that never holds the trigger, or such text, the trigger, and calls."""
    trigger = _trigger(markers)
    if trigger in markers.control:
        spelled = _spelled(trigger, markers)
        return [f"start: FREE | {spelled} calls | FREE {spelled} calls", r"FREE: /(.|\n)*/"]
    pattern = re.sub(r"([^\w\s<>])", r"\\\1", trigger).replace("\n", r"\n")
    return [
        "start: FREE | TRIGGER calls",
        rf"FREE: /(.|\n)*/ & ~/(.|\n)*{pattern}(.|\n)*/",
        f"TRIGGER: FREE {_spelled(trigger, markers)}",
    ]


def _spelled(text: str, markers: ToolMarkers) -> str:
    """Text as Lark: strings, and control tokens by id."""
    names = sorted(markers.control, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text) if names else [text]
    spelled = [
        f"<[{markers.control[part]}]>" if part in markers.control else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    ]
    return " ".join(spelled) or '""'
