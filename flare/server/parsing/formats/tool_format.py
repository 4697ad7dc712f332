"""How a family of models writes tool calls: markers as data, a reader of one call, and what a grammar forces."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.calls import Calls
from flare.server.parsing.stream import Steps, Stream
from flare.server.parsing.values import member_schema, only_text


class Json(NamedTuple):
    """JSON of a schema."""

    schema: Mapping[str, Any]


class Text(NamedTuple):
    """Bare text up to an end marker, which never occurs inside it, then what else closes it."""

    end: str
    closing: str


class Maybe(NamedTuple):
    """What may be left out."""

    pieces: "Sequence[Piece]"


class Either(NamedTuple):
    """One of several texts."""

    texts: Sequence[str]


Piece = str | Json | Text | Maybe | Either


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls.

    Attributes:
        begin: starts a call; empty where calls are bare JSON, and nothing but calls may follow the first one.
        read: reads one call behind `begin`, its own end marker included. Raises NoCallError or CutShortError.
        write: the pieces of one call behind `begin`, its own end marker included.
        opening, closing: around all calls of an answer, or around each; empty where there is nothing.
        first, between, last: what a grammar writes before the first call, between two, and after the last.
        markers: every text that may be one control token of the vocabulary.
        arguments_as_text: the template wants the arguments of earlier calls as JSON text, not as an object.
    """

    begin: str
    read: Callable[[Stream, Calls], Steps[None]]
    write: Callable[[ToolSpec], Sequence[Piece]]
    opening: str = ""
    closing: str = ""
    first: str = ""
    between: str = "\n"
    last: str = ""
    markers: tuple[str, ...] = ()
    arguments_as_text: bool = False

    @property
    def trigger(self) -> str:
        """What the first call of an answer starts with."""
        return self.opening or self.begin


def member_pieces(tool: ToolSpec, member: Callable[[str, Mapping[str, Any]], Sequence[Piece]]) -> list[Piece]:
    """The pieces of arguments that are written one by one, in the order of the schema; only required ones must come."""
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    pieces: list[Piece] = []
    for key, schema in properties.items():
        written = member(key, schema if isinstance(schema, Mapping) else {})
        pieces += written if key in required else [Maybe(written)]
    return pieces


def definitions(tool: ToolSpec) -> dict[str, Any]:
    """What references inside the parameters name, for a schema that holds only part of them, or more."""
    return {name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters}


def value_pieces(tool: ToolSpec, key: str, end: str, closing: str) -> list[Piece]:
    """A bare value and what closes it, `end` first: text, one of an enumeration, or JSON of the property's schema."""
    schema = member_schema(tool.parameters, key)
    if not only_text(schema):
        return [Json({**definitions(tool), **schema}), closing]
    listed = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return [Either(tuple(listed)), closing] if listed else [Text(end, closing)]
