"""Hermes, and Qwen up to its third generation: JSON between markers.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

import json
from collections.abc import Sequence

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls, json_call
from flare.server.parsing.formats.tool_format import Json, Piece, ToolFormat
from flare.server.parsing.stream import Steps, Stream

END = "</tool_call>"


def read(stream: Stream, calls: Calls) -> Steps[None]:
    """One call behind its marker."""
    yield from json_call(stream, calls, END)


def write(tool: ToolSpec) -> Sequence[Piece]:
    """One call behind its marker."""
    name = json.dumps(tool.name, ensure_ascii=False)
    return [f'\n{{"name": {name}, "arguments": ', Json(tool.parameters), f"}}\n{END}"]


HERMES = ToolFormat("<tool_call>", read, write, markers=("<tool_call>", END))
