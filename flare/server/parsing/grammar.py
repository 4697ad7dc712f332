"""Tool calls forced by a grammar, in a model's own format: what it would write freely, and nothing else.

The grammar is Lark with `%json` schemas, for `sampling.grammar`. Free text never holds what begins a call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flare.errors import RequestError
from flare.runtime.constraints.wishes import bounded
from flare.server.parsing.answer_format import ToolSpec
from flare.server.parsing.formats.tool_format import Either, Json, Maybe, Piece, ToolFormat

ANYTHING = r"/(.|\n)*/"
ESCAPED_OR_NOT = r"\\?."


@dataclass(frozen=True)
class Shape:
    """What an answer may be.

    Attributes:
        tools: those that may be called.
        free: text without a call will do as well; `several`: more than one call may follow.
        constraint: the sampling field that text without a call must follow, if any, by name.
    """

    tools: Sequence[ToolSpec]
    free: bool = False
    several: bool = True
    constraint: Mapping[str, Any] | None = None


def call_grammar(format: ToolFormat, shape: Shape, control: Mapping[str, int]) -> str:
    """The grammar of an answer.

    Args:
        control: markers that are control tokens of the vocabulary, and their ids.

    Raises:
        RequestError: calls beside a Lark grammar of the request's own.
    """
    writer = _Writer(control)
    calls = [writer.expression(format.write(tool)) for tool in shape.tools]
    begin = format.first + format.begin
    lead = writer.spelled(begin[len(format.trigger) :])
    further = ""
    if shape.several:
        further = f"({writer.spelled(format.between + format.begin)} call)*"
    rules = [
        *(f"call_{index}: {call}" for index, call in enumerate(calls)),
        "call: " + " | ".join(f"call_{index}" for index in range(len(calls))),
        f"calls: {lead} call {further} {writer.spelled(format.last)}",
    ]
    return "\n".join([*_start(format.trigger, shape, writer), *rules, *writer.terminals]) + "\n"


def _start(trigger: str, shape: Shape, writer: "_Writer") -> list[str]:
    called = f"{writer.spelled(trigger)} calls"
    if not shape.free:
        return [f"start: {called}"]
    if shape.constraint:
        return [f"start: {called} | {_constrained(shape.constraint)}"]
    if not trigger:
        return [f"start: {called} | FREE?", r"FREE: /[^{\s](.|\n)*/"]
    lead = writer.text_until("TRIGGER", trigger, trigger)
    return [f"start: FREE? | {lead} calls", f"FREE: {writer.without(trigger)}"]


def _constrained(constraint: Mapping[str, Any]) -> str:
    """An answer's own constraint as a Lark expression."""
    if "json_schema" in constraint:
        return json_expression(constraint["json_schema"])
    if "json_object" in constraint:
        return json_expression({"type": "object"})
    if "regex" in constraint:
        return f"/{re.sub(ESCAPED_OR_NOT, _in_lark, constraint['regex'], flags=re.DOTALL)}/"
    raise RequestError("sampling.grammar cannot be combined with tools: leave one of them out.")


def _in_lark(character: re.Match[str]) -> str:
    """A character of a pattern, escaped or not, between the slashes of a Lark terminal, which is one line."""
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(character.group(), character.group())


class _Writer:
    """Writes pieces as Lark; what needs a terminal of its own collects in `terminals`."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self.control = control
        self.terminals: list[str] = []
        names = sorted(control, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def expression(self, pieces: Sequence[Piece]) -> str:
        """The pieces one after the other."""
        return " ".join(self._piece(piece) for piece in pieces)

    def spelled(self, text: str) -> str:
        """Text as strings, and control tokens by id."""
        parts = self._split.split(text) if self._split else [text]
        written = [
            f"<[{self.control[part]}]>" if part in self.control else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        ]
        return " ".join(written) or '""'

    def _piece(self, piece: Piece) -> str:
        if isinstance(piece, str):
            return self.spelled(piece)
        if isinstance(piece, Json):
            return json_expression(piece.schema)
        if isinstance(piece, Maybe):
            return f"({self.expression(piece.pieces)})?"
        if isinstance(piece, Either):
            return "(" + " | ".join(self.spelled(text) for text in piece.texts) + ")"
        return self.text_until(f"TEXT_{len(self.terminals)}", piece.end, piece.closing)

    def text_until(self, name: str, end: str, closing: str) -> str:
        """Bare text without `end` in it, and its closing, which holds `end`.

        Both are one terminal, for text alone would not know where to stop; but no terminal holds control tokens.
        """
        parts = self._split.split(closing, 1) if self._split else [closing]
        if len(parts) == 1:
            self.terminals.append(f"{name}: {self.without(end)} {self.spelled(closing)}")
            return name
        self.terminals.append(f"{name}: {ANYTHING} {self.spelled(parts[0])}")
        return f"{name if parts[0] else name + '?'} {self.spelled(closing[len(parts[0]) :])}"

    def without(self, text: str) -> str:
        """A regular expression of all that does not hold the text; control tokens are in none of it anyway."""
        if self._split and self._split.search(text):
            return ANYTHING
        return f"({ANYTHING} & ~/(.|\\n)*{escaped(text)}(.|\\n)*/)"


def json_expression(schema: Mapping[str, Any]) -> str:
    """JSON of a schema as a Lark expression."""
    return f"%json {json.dumps(bounded(schema))}"


def escaped(text: str) -> str:
    """Text as part of a regular expression."""
    return re.sub(r"([\\/.+*?()|\[\]{}^$#&~-])", r"\\\1", text).replace("\n", r"\n")
