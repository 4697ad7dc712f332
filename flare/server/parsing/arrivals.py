"""The text of an answer with markers in it that are control tokens, which decoding leaves out.

Text can arrive later than its tokens: what might become a stop string is held back. So a control token is put where
the text before it ends, which a second decoding of the same tokens knows, and not where the text has arrived.
"""

from collections import deque
from collections.abc import Mapping

from flare.contract.vocabulary import TextStream


class Arrivals:
    """Joins released text and control markers in the order of the tokens."""

    def __init__(self, control: Mapping[int, str], decoder: TextStream | None) -> None:
        """Args: control: id → marker; decoder: fresh; both only matter together."""
        self._control = control
        self._decoder = decoder
        self._decoded_characters = 0
        self._released_characters = 0
        self._waiting: deque[tuple[int, str]] = deque()

    def push(self, text: str, token_id: int) -> str:
        """The text that a token releases, and markers where the text before them is there.

        A marker behind text that a stop string cuts off is gone with it.
        """
        if not self._control or self._decoder is None:
            return text
        if token_id in self._control:
            self._waiting.append((self._decoded_characters, self._control[token_id]))
        self._decoded_characters += len(self._decoder.push(token_id))
        return self._release(text)

    def _release(self, text: str) -> str:
        released = ""
        while self._waiting and self._waiting[0][0] <= self._released_characters + len(text):
            at, marker = self._waiting.popleft()
            count = at - self._released_characters
            released += text[:count] + marker
            text = text[count:]
            self._released_characters += count
        self._released_characters += len(text)
        return released + text
