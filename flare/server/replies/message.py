"""The parts of an answer as a message, and as the deltas of a stream."""

from collections.abc import Iterable, Sequence
from typing import Any

from flare.server.parsing.answer_format import CallArguments, CallBegin, ContentPart, Part, ReasoningPart


def delta(part: Part) -> dict[str, Any]:
    """A part as the delta of a chunk."""
    if isinstance(part, ContentPart):
        return {"content": part.text}
    if isinstance(part, ReasoningPart):
        return {"reasoning_content": part.text}
    if isinstance(part, CallBegin):
        function = {"name": part.name, "arguments": ""}
        return {"tool_calls": [{"index": part.index, "id": part.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same parts, with neighbours that continue each other as one."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, ContentPart) and isinstance(last, ContentPart):
            merged[-1] = ContentPart(last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            merged[-1] = ReasoningPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.index == last.index:
            merged[-1] = CallArguments(part.index, last.text + part.text)
        else:
            merged.append(part)
    return merged


def message(parts: Sequence[Part]) -> dict[str, Any]:
    """The whole message; content is null where there is nothing but calls."""
    content = "".join(part.text for part in parts if isinstance(part, ContentPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = {part.index: part for part in parts if isinstance(part, CallBegin)}
    document: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reasoning:
        document["reasoning_content"] = reasoning
    if calls:
        document["tool_calls"] = [_call(call, parts) for call in calls.values()]
    return document


def _call(call: CallBegin, parts: Sequence[Part]) -> dict[str, Any]:
    arguments = "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == call.index)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
