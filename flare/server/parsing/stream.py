"""The text of one answer as it comes: what has arrived and is not read yet, and how readers wait for more.

Readers are generators. They yield parts, and None where they need more text than there is; what they decide depends
on the text alone, never on the pieces it came in.
"""

from collections.abc import Generator, Sequence
from typing import TypeVar

from flare.server.parsing.answer_format import Part

BLANKS = " \t\r\n"
NAME_CHARACTERS = 256  # most that the name of a function or a parameter may have

T = TypeVar("T")
Steps = Generator[Part | None, None, T]


class NoCallError(Exception):
    """What stands here is no call after all."""


class CutShortError(Exception):
    """The answer ended inside a call."""


class Stream:
    """Unread text.

    Attributes:
        text: arrived and not read.
        ended: no more will arrive.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self._record: list[str] | None = None

    def record(self, begun_with: str) -> None:
        """Remember what is read from here on, `begun_with` before it."""
        self._record = [begun_with]

    def recorded(self) -> str:
        """What was read since `record`; it is remembered no longer."""
        text, self._record = "".join(self._record or ()), None
        return text

    def take(self, count: int) -> str:
        """Read that many characters."""
        taken, self.text = self.text[:count], self.text[count:]
        if self._record is not None:
            self._record.append(taken)
        return taken

    def before(self, markers: Sequence[str]) -> tuple[str, str | None]:
        """Read up to the first marker and over it.

        Returns:
            The text before it, and the marker; or as much as certainly belongs to no marker, and None.
        """
        at, marker = self._safe(markers)
        before = self.take(at)
        if marker is not None:
            self.take(len(marker))
        return before, marker

    def need(self) -> Steps[None]:
        """Wait for more text; raises CutShortError where none will come."""
        if self.ended:
            raise CutShortError
        yield None

    def next_character(self) -> Steps[str]:
        """The next character that is no blank, read up to but not over."""
        while not (rest := self.text.lstrip(BLANKS)):
            self.take(len(self.text))
            yield from self.need()
        self.take(len(self.text) - len(rest))
        return rest[0]

    def follows(self, marker: str) -> Steps[bool]:
        """Read over blanks and the marker, if they come next; else nothing is read."""
        while True:
            rest = self.text.lstrip(BLANKS)
            if rest.startswith(marker):
                self.take(len(self.text) - len(rest) + len(marker))
                return True
            if self.ended or not marker.startswith(rest):
                return False
            yield None

    def expect(self, marker: str) -> Steps[None]:
        """Read over blanks and the marker; raises NoCallError where another text comes, CutShortError at the end."""
        if (yield from self.follows(marker)):
            return
        raise CutShortError if marker.startswith(self.text.lstrip(BLANKS)) else NoCallError

    def until(self, markers: Sequence[str], most_characters: int | None = None) -> Steps[tuple[str, str]]:
        """Read up to the first marker and over it; the text before it, and the marker.

        Raises:
            NoCallError: more than `most_characters` come before it; that many are read.
        """
        text = ""
        while True:
            at, marker = self._safe(markers)
            if most_characters is not None and len(text) + at > most_characters:
                self.take(most_characters - len(text))
                raise NoCallError
            text += self.take(at)
            if marker is not None:
                self.take(len(marker))
                return text, marker
            yield from self.need()

    def _safe(self, markers: Sequence[str]) -> tuple[int, str | None]:
        """How much of the text comes before the first marker, and the marker; or certainly belongs to none."""
        found = [(at, marker) for marker in markers if (at := self.text.find(marker)) >= 0]
        if found:
            return min(found)
        held = 0 if self.ended else max((_reach(self.text, marker) for marker in markers), default=0)
        return len(self.text) - held, None


def _reach(text: str, marker: str) -> int:
    """Length of the longest end of the text that the marker could begin with."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
