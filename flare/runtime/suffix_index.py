"""Suffix index: where a run of eight or four tokens was last seen with a token after it.

A position enters the index only once the token that follows its run exists, so a sequence never finds its own open end.
Runs are packed into bytes, which are compared whole, never by hash alone, and remember their hash: learning a run and
forgetting it cost one look-up each.
"""

from array import array
from collections.abc import Iterable

RUN_TOKENS = (8, 4)  # an eight-token match is preferred whatever the age of a four-token one
LONGEST_RUN = max(RUN_TOKENS)
TOKEN_BYTES = 8


def packed(tokens: Iterable[int]) -> bytes:
    """The tokens as runs are cut from: int64, one after the other."""
    return array("q", [*tokens]).tobytes()  # a list: array takes bytes for what it holds already


class SuffixIndex:
    """Map each run to the newest position it begins at.

    Attributes:
        begins: by length in tokens, the position of each run. A run may end in its owner's scope.
    """

    __slots__ = ("begins",)

    def __init__(self) -> None:
        self.begins: dict[int, dict[bytes, int]] = {length: {} for length in RUN_TOKENS}

    def __len__(self) -> int:
        return sum(map(len, self.begins.values()))

    def find(self, query: bytes, scope: bytes = b"") -> tuple[int, int] | None:
        """Position and length of the run that the query ends with, eight tokens before four.

        Args:
            query: packed tokens, of which the last eight are enough.
            scope: what the learned runs end in after their tokens; runs of another scope are never met.
        """
        for length, begins in self.begins.items():
            size_bytes = length * TOKEN_BYTES
            if len(query) >= size_bytes:
                begin = begins.get(query[-size_bytes:] + scope)
                if begin is not None:
                    return begin, length
        return None
