"""JSON that is still being written: which characters may come next, and where a value ends.

Source: RFC 8259. One liberty: control characters inside a string, which models do write, are escaped on the way.
"""

import json
import re
from typing import Any

from flare.server.parsing.stream import NoCallError, Steps, Stream

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_LITERALS = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonText:
    """Reads one value; `done` once it is whole, `bad` once a character came that cannot belong to it."""

    def __init__(self) -> None:
        self.done = False
        self.bad = False
        self._state = "value"
        self._containers: list[str] = []
        self._word = ""  # a number, a literal or an escape so far
        self._in_key = False

    def read(self, text: str) -> tuple[str, int]:
        """Read on, up to the end of the value or of the text, or to a bad character.

        Returns:
            The value's text as it continues, and how many characters were read.
        """
        written, at = "", 0
        while at < len(text) and not (self.done or self.bad):
            plain = _PLAIN.match(text, at) if self._state == "string" else None
            piece = plain.group() if plain else text[at]
            added = piece if plain else self._next(piece)
            if added is None:
                break
            written += added
            at += len(piece)
        return written, at

    def _next(self, character: str) -> str | None:
        """What the character adds to the text; None where it is not part of the value."""
        if self._state == "word" and not self._continues_word(character):
            self._close_word()
            if self.done or self.bad:
                return None
        if self._state == "word":
            self._word += character
            return character
        if self._state in ("string", "escape"):
            return self._in_string(character)
        if character in " \t\r\n":
            return character
        self.bad = not self._structure(character)
        return None if self.bad else character

    def _continues_word(self, character: str) -> bool:
        word = self._word + character
        return bool(_NUMBER_BEGUN.fullmatch(word)) or any(literal.startswith(word) for literal in _LITERALS)

    def _close_word(self) -> None:
        self.bad = not (_NUMBER.fullmatch(self._word) or self._word in _LITERALS)
        if not self.bad:
            self._after_value()

    def _in_string(self, character: str) -> str | None:
        if self._state == "escape":
            return self._in_escape(character)
        if character == "\\":
            self._state, self._word = "escape", ""
        elif character == '"':
            if self._in_key:
                self._state, self._in_key = "colon", False
            else:
                self._after_value()
        else:
            return json.dumps(character)[1:-1]
        return character

    def _in_escape(self, character: str) -> str | None:
        begun = bool(self._word)
        if character not in (_HEX if begun else '"\\/bfnrtu'):
            self.bad = True
            return None
        self._word += character
        if self._word[0] != "u" or len(self._word) == 5:
            self._state = "string"
        return character

    def _structure(self, character: str) -> bool:
        """Move over a character outside strings and words; whether it may stand here."""
        state, inside = self._state, self._containers[-1] if self._containers else ""
        if state == "colon":
            self._state = "value"
            return character == ":"
        if character == "," and state == "after":
            self._state = "key" if inside == "{" else "value"
            return True
        if character in "}]":
            opened = {"}": "{", "]": "["}[character]
            may_close = state == "after" or state == "first"
            if inside != opened or not may_close:
                return False
            self._containers.pop()
            self._after_value()
            return True
        if state == "key" or (state == "first" and inside == "{"):
            self._state, self._in_key = "string", True
            return character == '"'
        return state in ("value", "first") and self._begin_value(character)

    def _begin_value(self, character: str) -> bool:
        if character in "{[":
            self._containers.append(character)
            self._state = "first"
        elif character == '"':
            self._state = "string"
        else:
            self._state, self._word = "word", character
            return character in "-0123456789tfn"
        return True

    def _after_value(self) -> None:
        self._state = "after"
        self.done = not self._containers


def json_value(stream: Stream) -> Steps[str]:
    """Read one JSON value, blanks before it left out; its text. Raises NoCallError or CutShortError."""
    yield from stream.next_character()
    value, written = JsonText(), ""
    while True:
        piece, count = value.read(stream.text)
        stream.take(count)
        written += piece
        if value.bad:
            raise NoCallError
        if value.done:
            return written
        yield from stream.need()


def parsed(text: str) -> Any:
    """The value of JSON text.

    Raises:
        NoCallError: it is none, holds what UTF-8 cannot spell, or is too deep or too long to read.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise NoCallError from error
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
