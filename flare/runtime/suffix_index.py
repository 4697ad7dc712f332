"""Suffix index: where a run of eight or four tokens was last seen with a token after it.

A position enters the index only once the token that follows its run exists, so a sequence never finds its own open end.
Runs are compared token by token, never by hash alone.
"""

from collections.abc import Sequence

RUN_TOKENS = (8, 4)  # an eight-token match is preferred whatever the age of a four-token one

Run = tuple[object, ...]


class SuffixIndex:
    """Map each run to the newest position it begins at; runs of both lengths share one table, their lengths differ."""

    def __init__(self) -> None:
        self._begins: dict[Run, int] = {}

    def __len__(self) -> int:
        return len(self._begins)

    def learn(self, run: Run, begin: int) -> None:
        """Note that `run` begins at `begin` and has a next token; the larger position stays."""
        if self._begins.get(run, -1) < begin:
            self._begins[run] = begin

    def learn_sequence(self, tokens: Sequence[int], known: int) -> None:
        """Learn every run of one contiguous sequence that gained a next token since its length was `known`."""
        begins = self._begins
        for length in RUN_TOKENS:
            for begin in range(max(0, known - length), len(tokens) - length):
                begins[tuple(tokens[begin : begin + length])] = begin

    def forget(self, run: Run, begin: int) -> None:
        """Drop `run` if the position it leads to is `begin`; a newer occurrence is left alone."""
        if self._begins.get(run) == begin:
            del self._begins[run]

    def find(self, query: Sequence[int], scope: Run = ()) -> tuple[int, int] | None:
        """Position and length of the run that the query ends with, eight tokens before four.

        Args:
            query: its last eight tokens are enough.
            scope: what the learned runs begin with before their tokens; runs of another scope are never met.
        """
        for length in RUN_TOKENS:
            if len(query) >= length:
                begin = self._begins.get((*scope, *query[-length:]))
                if begin is not None:
                    return begin, length
        return None
