"""A matcher that is off until a marker was written: free text first, what must be followed only after it.

The marker is looked for in the text of the tokens, so every way to spell it counts. What the token that completes it
holds beyond the marker is free text still: the constraint begins with the next token.
"""

from collections.abc import Callable, Sequence

from flare.runtime.constraints.matcher import MaskRow, Matcher


class AfterMarker:
    """Free text up to a marker, then another matcher.

    A round drafts only what the host knows until the marker is there too: a learned draft behind it would be unmasked.
    """

    def __init__(self, inner: Matcher, marker: bytes, spelling: Callable[[int], bytes], tail: bytes = b"") -> None:
        """Args: spelling: the bytes of a token, control tokens by name; tail: the end of the text so far."""
        self._inner = inner
        self._marker = marker
        self._spelling = spelling
        self._tail = tail
        self._on = False

    @property
    def on(self) -> bool:
        """Whether the marker was written."""
        return self._on

    @property
    def fault(self) -> str | None:
        return self._inner.fault if self._on else None

    @property
    def may_end(self) -> bool:
        return self._inner.may_end if self._on else True

    @property
    def at_end(self) -> bool:
        return self._on and self._inner.at_end

    def copy(self) -> "AfterMarker":
        twin = AfterMarker(self._inner.copy() if self._on else self._inner, self._marker, self._spelling, self._tail)
        twin._on = self._on
        return twin

    def legal(self, tokens: Sequence[int]) -> int:
        free = self._free(tokens)
        return free + self._inner.legal(tokens[free:]) if free < len(tokens) or self._on else free

    def consume(self, tokens: Sequence[int]) -> None:
        free = self._free(tokens)
        if free:
            text = self._tail + b"".join(self._spelling(token) for token in tokens[:free])
            if self._marker in text:
                self._on, self._inner = True, self._inner.copy()
            self._tail = text[-len(self._marker) + 1 :] if len(self._marker) > 1 else b""
        if free < len(tokens):
            self._inner.consume(tokens[free:])

    def forced(self) -> list[int]:
        return self._inner.forced() if self._on else []

    def allow(self, row: MaskRow) -> None:
        if self._on:
            self._inner.allow(row)
        else:
            row[:] = -1

    def _free(self, tokens: Sequence[int]) -> int:
        """How many of the tokens are free text: all, or up to the one that completes the marker."""
        if self._on:
            return 0
        text = self._tail
        for index, token in enumerate(tokens):
            text += self._spelling(token)
            if self._marker in text:
                return index + 1
        return len(tokens)
