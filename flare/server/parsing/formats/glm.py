"""GLM from 4.5 on: the name, then keys and values between markers, with or without line breaks.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

Values are bare: strings as they are, everything else as JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls, Members
from flare.server.parsing.formats.tool_format import Piece, ToolFormat, member_pieces, value_pieces
from flare.server.parsing.stream import NAME_CHARACTERS, Steps, Stream

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def read(stream: Stream, calls: Calls) -> Steps[None]:
    """One call behind its marker."""
    yield from stream.next_character()
    name, marker = yield from stream.until(("\n", KEY, END), NAME_CHARACTERS)
    members = Members(stream, calls, name.strip())
    over = marker == END or (marker == "\n" and (yield from stream.follows(END)))
    if not over and marker == "\n":
        yield from stream.expect(KEY)
    while not over:
        key, _ = yield from stream.until((KEY_END,), NAME_CHARACTERS)
        yield from stream.expect(VALUE)
        yield from members.member(key.strip(), (VALUE_END,))
        over = yield from stream.follows(END)
        if not over:
            yield from stream.expect(KEY)
    yield from members.end()


def write(tool: ToolSpec) -> Sequence[Piece]:
    """One call behind its marker."""

    def member(key: str, schema: Mapping[str, Any]) -> list[Piece]:  # noqa: ARG001  found by its key
        return [f"{KEY}{key}{KEY_END}\n{VALUE}", *value_pieces(tool, key, VALUE_END, f"{VALUE_END}\n")]

    return [f"{tool.name}\n", *member_pieces(tool, member), END]


GLM = ToolFormat(BEGIN, read, write, markers=(BEGIN, END, KEY, KEY_END, VALUE, VALUE_END))
