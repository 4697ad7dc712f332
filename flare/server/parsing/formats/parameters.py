"""Qwen3-Coder and its descendants: a tag for the function and one for each parameter.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Values are bare: strings as they are, everything else as JSON. The outer markers are forgiven where they are missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls, Members
from flare.server.parsing.formats.tool_format import Piece, ToolFormat, member_pieces, value_pieces
from flare.server.parsing.stream import NAME_CHARACTERS, Steps, Stream

OPENING, CLOSING = "<tool_call>", "</tool_call>"
BEGIN, END = "<function=", "</function>"
KEY, VALUE_END = "<parameter=", "</parameter>"


def read(stream: Stream, calls: Calls) -> Steps[None]:
    """One call behind `<function=`."""
    name, _ = yield from stream.until((">",), NAME_CHARACTERS)
    members = Members(stream, calls, name.strip())
    while not (yield from stream.follows(END)):
        yield from stream.expect(KEY)
        key, _ = yield from stream.until((">",), NAME_CHARACTERS)
        while not stream.text:
            yield from stream.need()
        if stream.text.startswith("\n"):
            stream.take(1)
        yield from members.member(key.strip(), (f"\n{VALUE_END}", VALUE_END))
    yield from members.end()


def write(tool: ToolSpec) -> Sequence[Piece]:
    """One call behind `<function=`."""

    def member(key: str, schema: Mapping[str, Any]) -> list[Piece]:  # noqa: ARG001  found by its key
        return [f"{KEY}{key}>\n", *value_pieces(tool, key, VALUE_END, f"\n{VALUE_END}\n")]

    return [f"{tool.name}>\n", *member_pieces(tool, member), END]


PARAMETERS = ToolFormat(
    BEGIN,
    read,
    write,
    opening=OPENING,
    closing=CLOSING,
    first=f"{OPENING}\n",
    between=f"\n{CLOSING}\n{OPENING}\n",
    last=f"\n{CLOSING}",
    markers=(OPENING, CLOSING),
)
