"""DeepSeek V3 to V3.1: control tokens around the name and JSON arguments; the earlier of them add a fence.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{"zone": "UTC"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3 and R1 write `function` where the name is, and the name with a fenced block of JSON behind the separator.
"""

from collections.abc import Sequence

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls, json_arguments
from flare.server.parsing.formats.tool_format import Json, Piece, ToolFormat
from flare.server.parsing.stream import NAME_CHARACTERS, NoCallError, Steps, Stream

OPENING, CLOSING = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
KIND, FENCE = "function", "```"


def read(stream: Stream, calls: Calls) -> Steps[None]:
    """One call behind its marker."""
    name, marker = yield from stream.until((SEPARATOR, END), NAME_CHARACTERS)
    if marker == END:
        raise NoCallError
    fenced = name.strip() == KIND
    if fenced:
        name, _ = yield from stream.until(("\n",), NAME_CHARACTERS)
        yield from stream.expect(f"{FENCE}json")
    yield from json_arguments(stream, calls, name.strip())
    if fenced:
        yield from stream.follows(FENCE)
    yield from stream.follows(END)


def write(tool: ToolSpec) -> Sequence[Piece]:
    """One call behind its marker, as V3.1 writes it."""
    return [f"{tool.name}{SEPARATOR}", Json(tool.parameters), END]


def write_fenced(tool: ToolSpec) -> Sequence[Piece]:
    """One call behind its marker, as V3 and R1 write it."""
    return [f"{KIND}{SEPARATOR}{tool.name}\n{FENCE}json\n", Json(tool.parameters), f"\n{FENCE}{END}"]


MARKERS = (OPENING, CLOSING, BEGIN, END, SEPARATOR)
DEEPSEEK = ToolFormat(
    BEGIN, read, write, OPENING, CLOSING, OPENING, "", CLOSING, markers=MARKERS, arguments_as_text=True
)
DEEPSEEK_FENCED = ToolFormat(
    BEGIN, read, write_fenced, OPENING, CLOSING, OPENING, "\n", CLOSING, markers=MARKERS, arguments_as_text=True
)
