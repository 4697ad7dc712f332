"""DeepSeek from V3.2 on: tags in its own namespace, and values that say themselves whether they are strings.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 calls the outer tag `tool_calls`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls, Members
from flare.server.parsing.formats.tool_format import Piece, ToolFormat, member_pieces, value_pieces
from flare.server.parsing.stream import NAME_CHARACTERS, NoCallError, Steps, Stream
from flare.server.parsing.values import member_schema, only_text

SPACE = "｜DSML｜"
BEGIN, END = f'<{SPACE}invoke name="', f"</{SPACE}invoke>"
KEY, VALUE_END = f'<{SPACE}parameter name="', f"</{SPACE}parameter>"


def read(stream: Stream, calls: Calls) -> Steps[None]:
    """One call behind its begin, which ends inside the name's quotes."""
    name, _ = yield from stream.until(('">',), NAME_CHARACTERS)
    members = Members(stream, calls, name)
    while not (yield from stream.follows(END)):
        yield from stream.expect(KEY)
        key, _ = yield from stream.until(('"',), NAME_CHARACTERS)
        attributes, _ = yield from stream.until((">",), NAME_CHARACTERS)
        written = {'string="true"': "text", 'string="false"': "json", "": None}
        if attributes.strip() not in written:
            raise NoCallError
        yield from members.member(key, (VALUE_END,), written[attributes.strip()])
    yield from members.end()


def write(tool: ToolSpec) -> Sequence[Piece]:
    """One call behind its begin."""

    def member(key: str, schema: Mapping[str, Any]) -> list[Piece]:  # noqa: ARG001  found by its key
        text = "true" if only_text(member_schema(tool.parameters, key)) else "false"
        return [f'{KEY}{key}" string="{text}">', *value_pieces(tool, key, VALUE_END, f"{VALUE_END}\n")]

    return [f'{tool.name}">\n', *member_pieces(tool, member), END]


def named(outer: str) -> ToolFormat:
    """The format with an outer tag of that name."""
    opening, closing = f"<{SPACE}{outer}>", f"</{SPACE}{outer}>"
    return ToolFormat(
        BEGIN, read, write, opening, closing, f"{opening}\n", "\n", f"\n{closing}", (SPACE,), arguments_as_text=True
    )


DSML = named("function_calls")
DSML_V4 = named("tool_calls")
