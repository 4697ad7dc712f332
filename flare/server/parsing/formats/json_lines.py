"""Calls as bare JSON objects, one a line: for models that have no markers, or never learned to call tools.

    {"name": "get_weather", "arguments": {"city": "Paris"}}

Any answer of a model may be JSON, so an object is a call only where the answer begins with it (or it follows a call)
and where it names a declared tool before its arguments, or after them.
"""

from collections.abc import Sequence

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls, json_call
from flare.server.parsing.formats.tool_format import Json, Piece, ToolFormat, definitions
from flare.server.parsing.stream import Steps, Stream


def read(stream: Stream, calls: Calls) -> Steps[None]:
    """One call, its first brace included."""
    yield from json_call(stream, calls, only_declared=True)


def write(tool: ToolSpec) -> Sequence[Piece]:
    """One call, all of it JSON of one schema: so it can stand beside other JSON that a request allows."""
    members = {"name": {"const": tool.name}, "arguments": tool.parameters}
    schema = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return [Json({**definitions(tool), **schema})]


JSON_LINES = ToolFormat("", read, write)
