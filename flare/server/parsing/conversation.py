"""Conversations with tools as templates want them, and as text for templates that know no tools.

Without a place for tools in the template, tools are described in the system message and calls are JSON lines:

    {"name": "get_weather", "arguments": {"city": "Paris"}}

Earlier calls are shown in the same way, and their results as messages of the user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flare.server.parsing.answer_format import ToolSpec
from flare.server.wire.errors import ApiError, Code

Message = dict[str, Any]

INTRODUCTION = """\
You can call functions. To call some, answer with nothing but one JSON object a line for each call:
{"name": <name of the function>, "arguments": <object with its arguments>}
Otherwise answer in plain text. These are the functions; their parameters are JSON schemas:"""


def for_template(messages: Sequence[Message], arguments_as_text: bool) -> list[Message]:
    """The messages with the arguments of earlier calls as the template reads them.

    Raises:
        ApiError: arguments that are no JSON object.
    """
    shown = []
    for index, message in enumerate(messages):
        calls = []
        for position, call in enumerate(message.get("tool_calls") or ()):
            where = f"messages[{index}].tool_calls[{position}].function.arguments"
            arguments = _arguments(call["function"]["arguments"], where)
            written = call["function"]["arguments"] if arguments_as_text else arguments
            calls.append({**call, "function": {**call["function"], "arguments": written}})
        shown.append({**message, "tool_calls": calls} if calls else message)
    return shown


def as_text(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """The messages for a template that knows neither tools nor calls nor thoughts; raises like `for_template`."""
    names: dict[str, str] = {}
    shown: list[Message] = []
    for message in for_template(messages, arguments_as_text=False):
        if calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            lines = [message.get("content") or "", *(_line(call["function"]) for call in calls)]
            shown.append({"role": "assistant", "content": "\n".join(line for line in lines if line)})
        elif message["role"] == "tool" and message.get("content") is not None:
            name = names.get(message.get("tool_call_id", ""), "the function")
            result = f"Result of {name}:\n{message['content']}"
            if shown and shown[-1].get("results"):
                shown[-1]["content"] += f"\n\n{result}"
            else:
                shown.append({"role": "user", "content": result, "results": True})
        else:
            shown.append({"role": message["role"], "content": message.get("content")})
    plain = [{"role": message["role"], "content": message["content"]} for message in shown]
    return _introduced(plain, tools) if tools else plain


def _introduced(messages: list[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    described = "\n".join(json.dumps(tool.declared["function"], ensure_ascii=False) for tool in tools)
    introduction = f"{INTRODUCTION}\n{described}"
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": introduction}, *messages]
    return [{"role": "system", "content": f"{first['content']}\n\n{introduction}"}, *messages[1:]]


def _line(function: Mapping[str, Any]) -> str:
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(Code.INVALID_VALUE, f"{where} is not the text of a JSON object.", where)
    return arguments
