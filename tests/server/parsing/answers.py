"""Answers of models in every format, what they say, and short ways to read them in pieces."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from flare.server.parsing.answer_format import CallArguments, CallBegin, ContentPart, Part, ReasoningPart, ToolSpec
from flare.server.parsing.formats import FORMATS
from flare.server.parsing.reader import Reader, Reading


def spec(name: str, parameters: dict[str, Any], **more: object) -> ToolSpec:
    declared = {"type": "function", "function": {"name": name, "parameters": parameters, **more}}
    return ToolSpec(name, parameters, declared)


WEATHER = spec(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "where": {"type": "object"},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    description="Tomorrow's weather",
)
NOW = spec("now", {"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (WEATHER, NOW)

ARGUMENTS = {"city": 'Zürich "1" </tool_cal>\n🌊', "days": 3, "metric": True, "where": {"lat": [47.4]}}
PLAIN = {"city": "Zürich", "days": 3, "metric": True, "where": {"lat": [47.4]}}


def hermes(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json_line(name, arguments)}\n</tool_call>"


def json_line(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parameters(name: str, arguments: dict[str, Any]) -> str:
    members = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{members}</function>\n</tool_call>"


def glm(name: str, arguments: dict[str, Any]) -> str:
    members = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{members}</tool_call>"


def tight_glm(name: str, arguments: dict[str, Any]) -> str:
    return glm(name, arguments).replace("\n<arg", "<arg").replace(">\n</tool", "></tool").replace("now\n<", "now<")


def deepseek(*calls: tuple[str, Any]) -> str:
    written = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments, ensure_ascii=False)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def fenced(*calls: tuple[str, Any]) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
        f"{json.dumps(arguments, ensure_ascii=False)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def dsml(*calls: tuple[str, Any], outer: str = "function_calls") -> str:
    written = ""
    for name, arguments in calls:
        members = "".join(
            f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">{bare(value)}'
            "</｜DSML｜parameter>\n"
            for key, value in arguments.items()
        )
        written += f'<｜DSML｜invoke name="{name}">\n{members}</｜DSML｜invoke>\n'
    return f"<｜DSML｜{outer}>\n{written}</｜DSML｜{outer}>"


class Said(NamedTuple):
    """The joined parts of an answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


class Case(NamedTuple):
    """A text in a format, and what it says."""

    format: str
    text: str
    content: str = ""
    calls: Sequence[tuple[str, Any]] = ()


TWICE = [("get_weather", PLAIN), ("now", {})]
ONCE = [("get_weather", ARGUMENTS)]
NO_CALL = 'No <tool_call is made of "this", nor < this.\n'
CASES = [
    Case("hermes", f"On it.\n\n{hermes('get_weather', ARGUMENTS)}\n", "On it.", ONCE),
    Case("hermes", "".join(hermes(*call) for call in TWICE), "", TWICE),
    Case("parameters", "\n".join(parameters(*call) for call in TWICE), "", TWICE),
    Case("parameters", f"First this.\n{parameters('get_weather', ARGUMENTS)}", "First this.", ONCE),
    Case("glm", "\n".join(glm(*call) for call in TWICE), "", TWICE),
    Case("glm", "".join(tight_glm(*call) for call in TWICE), "", TWICE),
    Case("deepseek", f"Well.{deepseek(*TWICE)}", "Well.", TWICE),
    Case("deepseek_fenced", f"Well.{fenced(*TWICE)}", "Well.", TWICE),
    Case("dsml", f"Well.\n\n{dsml(*TWICE)}", "Well.", TWICE),
    Case("dsml_v4", dsml(*TWICE, outer="tool_calls"), "", TWICE),
    Case("json", "\n".join(json_line(*call) for call in TWICE), "", TWICE),
    Case("hermes", NO_CALL, NO_CALL),
]


def reading(format: str | None = "hermes", **more: Any) -> Reading:
    made = Reading(FORMATS[format] if format else None, TOOLS, identify=lambda: "id")
    return replace(made, **more)


def said(parts: Sequence[Part]) -> Said:
    """The parts joined; arguments must belong to the call begun last."""
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(calls)
            calls.append([part.name, ""])
        elif isinstance(part, CallArguments):
            assert part.index == len(calls) - 1
            calls[-1][1] += part.text
    return Said(
        "".join(part.text for part in parts if isinstance(part, ContentPart)),
        "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        tuple((name, arguments) for name, arguments in calls),
    )


def read(how: Reading, *pieces: str, at_once: bool = False, finish: bool = True) -> Said:
    """What an answer says whose tokens are the pieces; all in one event, or one event each."""
    reader = Reader(how)
    events = [list(pieces)] if at_once else [[piece] for piece in pieces]
    parts = [part for event in events for part in reader.push(event, range(len(event)))]
    return said(parts + (reader.finish() if finish else []))


def cut(text: str, *places: int) -> list[str]:
    """The text cut at the places."""
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


def chunks(text: str, size: int) -> list[str]:
    return [text[begin : begin + size] for begin in range(0, len(text), size)]
