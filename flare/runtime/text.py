"""From token ids to the text a client may see: incremental decoding and stop strings."""

from typing import Protocol


class TextStream(Protocol):
    """Incremental decoding of one request: `Vocabulary.stream()`."""

    def push(self, token_id: int, /) -> str:
        """Text that became certain with this token; may be empty."""
        ...

    def flush(self) -> str:
        """Text still held at the end."""
        ...


class Presenter:
    """Releases text as it becomes certain and finds where a stop string ends the request.

    The stop that *completes* first in the text wins. Released text never has to be taken back: what could still become
    a stop string is held. Stops that complete within the first `min_tokens` tokens are plain text.
    """

    def __init__(self, stream: TextStream, stops: tuple[str, ...] = (), min_tokens: int = 0) -> None:
        self.stopped = False
        self._stream = stream
        self._stops = stops
        self._min_tokens = min_tokens
        self._tokens = 0
        self._held = ""
        self._searched = 0
        self._released: list[str] = []

    @property
    def text(self) -> str:
        """Everything released."""
        return "".join(self._released)

    def push(self, token_id: int) -> str:
        """The text this token releases. Once a stop string completes, `stopped` is true and nothing may follow."""
        assert not self.stopped
        self._tokens += 1
        piece = self._stream.push(token_id)
        return self._add(piece, last=False) if self._stops else self._release(piece)

    def finish(self) -> str:
        """Release what is held, when no token will follow; here too a stop string may complete."""
        return "" if self.stopped else self._add(self._stream.flush(), last=True)

    def _add(self, piece: str, last: bool) -> str:
        if not self._stops:
            return self._release(piece)
        self._held += piece
        if self._tokens > self._min_tokens and (cut := self._first_stop()) is not None:
            self.stopped = True
            visible, self._held = self._held[:cut], ""
            return self._release(visible)
        keep = 0 if last else self._reach()
        cut = len(self._held) - keep
        visible, self._held = self._held[:cut], self._held[cut:]
        self._searched = keep
        return self._release(visible)

    def _release(self, text: str) -> str:
        if text:
            self._released.append(text)
        return text

    def _first_stop(self) -> int | None:
        """Where the stop string that completes first begins; None when none completes in the unsearched text."""
        found: list[tuple[int, int]] = []
        for stop in self._stops:
            begin = self._held.find(stop, max(0, self._searched - len(stop) + 1))
            if begin >= 0:
                found.append((begin + len(stop), begin))
        return min(found)[1] if found else None

    def _reach(self) -> int:
        """Length of the longest end of the held text that a stop string could begin with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops if len(stop) > length):
                return length
        return 0
