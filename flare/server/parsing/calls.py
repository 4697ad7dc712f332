"""The calls of one answer as they are told: numbered, and their arguments written as JSON text."""

import json
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from flare.server.parsing.answer_format import CallArguments, CallBegin, Part, ToolSpec
from flare.server.parsing.json_text import JsonText, json_value, parsed
from flare.server.parsing.stream import BLANKS, NoCallError, Steps, Stream
from flare.server.parsing.values import member_schema, only_text, typed

Identify = Callable[[], str]


def random_id() -> str:
    """A name for a call, unique for all practical purposes."""
    return f"call_{secrets.token_hex(12)}"


class Calls:
    """Numbers the calls of an answer. A call that was begun is never taken back.

    Attributes:
        count: calls begun.
        begun: the call that is being read was begun.
    """

    def __init__(self, tools: Sequence[ToolSpec], identify: Identify = random_id) -> None:
        self.count = 0
        self.begun = False
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._identify = identify

    def declared(self, name: str) -> bool:
        """Whether a tool of that name may be called."""
        return name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        """The parameters of a tool; undeclared ones have no schema."""
        return self._schemas.get(name, {})

    def begin(self, name: str) -> CallBegin:
        """A call of a tool, declared or not: what to do about the latter is for the client to say."""
        if not name:
            raise NoCallError
        self.begun = True
        self.count += 1
        return CallBegin(self.count - 1, self._identify(), name)

    def arguments(self, text: str) -> CallArguments:
        """More arguments of the call that was begun last."""
        return CallArguments(self.count - 1, text)


def json_arguments(stream: Stream, calls: Calls, name: str) -> Steps[None]:
    """A call whose arguments come next, as a JSON object; told while they are written.

    The call begins with the second character of the object, so that what is plainly no JSON is no call either.
    """
    if (yield from stream.next_character()) != "{":
        raise NoCallError
    value, held, begun = JsonText(), "", False
    while True:
        piece, count = value.read(stream.text)
        stream.take(count)
        held += piece
        if not begun and len(held.translate(_WITHOUT_BLANKS)) > 1:
            begun = True
            yield calls.begin(name)
        if begun and held:
            yield calls.arguments(held)
            held = ""
        if value.bad:
            raise NoCallError
        if value.done:
            return
        yield from stream.need()


def json_call(stream: Stream, calls: Calls, end: str = "", only_declared: bool = False) -> Steps[None]:
    """A call `{"name": NAME, "arguments": {…}}`, in any order, and the marker after it.

    `parameters` means arguments too; they may be missing, null, or an object written inside a string. A missing last
    brace is forgiven where the marker shows that the call is over.
    """
    name: str | None = None
    held: str | None = None
    told = False
    yield from stream.expect("{")
    character = yield from stream.next_character()
    while character != "}":
        key = parsed((yield from json_value(stream)))
        yield from stream.expect(":")
        if key == "name" and name is None:
            name = _name((yield from json_value(stream)), calls, only_declared)
        elif key in ("arguments", "parameters") and held is None and not told:
            if name is not None and (yield from stream.next_character()) == "{":
                yield from json_arguments(stream, calls, name)
                told = True
            else:
                held = yield from json_value(stream)
        else:
            yield from json_value(stream)
        if end and told and (yield from stream.follows(end)):
            return
        character = yield from stream.next_character()
        if character not in ",}":
            raise NoCallError
        if character == ",":
            stream.take(1)
    stream.take(1)
    if not told:
        yield from _tell(calls, name, held)
    if end:
        yield from stream.follows(end)


_WITHOUT_BLANKS = str.maketrans("", "", BLANKS)


def _name(text: str, calls: Calls, only_declared: bool) -> str:
    name = parsed(text)
    if not isinstance(name, str) or (only_declared and not calls.declared(name)):
        raise NoCallError
    return name


def _tell(calls: Calls, name: str | None, held: str | None) -> Generator[Part]:
    """A call whose arguments were read before it could begin."""
    if name is None:
        raise NoCallError
    value = parsed(held or "{}")
    if isinstance(value, str):
        held, value = value, parsed(value)
    if value is not None and not isinstance(value, dict):
        raise NoCallError
    yield calls.begin(name)
    yield calls.arguments(held if held and value is not None else "{}")


class Members:
    """Writes a JSON object member by member, for calls whose arguments come one by one.

    The call begins with its first member or its end, so that a name alone is no call.
    """

    def __init__(self, stream: Stream, calls: Calls, name: str) -> None:
        self._stream = stream
        self._calls = calls
        self._name = name
        self._members = 0

    def member(self, key: str, ends: Sequence[str], written: str | None = None) -> Steps[None]:
        """A member whose value comes next, up to one of the markers.

        Args:
            written: how the value is written, "text" or "json", where the model says so; else its schema decides.
        """
        schema = member_schema(self._calls.schema(self._name), key)
        if not self._members:
            yield self._calls.begin(self._name)
        yield self._calls.arguments(("{" if self._members == 0 else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._members += 1
        if written == "text" or (written is None and only_text(schema)):
            yield from self._text(ends)
        else:
            text, _ = yield from self._stream.until(ends)
            yield self._calls.arguments(typed(text, schema))

    def end(self) -> Generator[Part]:
        """The end of the object."""
        if not self._members:
            yield self._calls.begin(self._name)
        yield self._calls.arguments("}" if self._members else "{}")

    def _text(self, ends: Sequence[str]) -> Steps[None]:
        """A string, told while it is written."""
        yield self._calls.arguments('"')
        marker = None
        while marker is None:
            piece, marker = self._stream.before(ends)
            if piece:
                yield self._calls.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
            if marker is None:
                yield from self._stream.need()
        yield self._calls.arguments('"')
