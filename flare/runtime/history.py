"""What drafts are copied from: the shared ring of committed generated tokens, and each request's own context.

Responses may be written to the ring in turns; links keep each one whole, so a continuation never runs from one into
another. What the ring overwrites leaves the index in the same step: a match needs all its tokens to be held still.
"""

from collections.abc import Sequence

from flare.contract.frames import COPY_TOKENS
from flare.runtime.suffix_index import RUN_TOKENS, Run, SuffixIndex

RING_TOKENS = 65_536
_LONGEST = max(RUN_TOKENS)
_NOWHERE = -1


class Response:
    """One response being written; opened by `History.open` and grown only by it.

    Attributes:
        salt: the tenant whose queries may meet it.
        tokens, places: its last eight tokens and the ring positions they were given.
    """

    __slots__ = ("closed", "places", "salt", "tokens")

    def __init__(self, salt: str) -> None:
        self.salt = salt
        self.tokens: list[int] = []
        self.places: list[int] = []
        self.closed = False


class History:
    """The most recent `capacity` committed generated tokens of all requests.

    Positions count all tokens ever written; position p lies in place p % capacity until p + capacity takes it.
    Among matches of one length the one that begins last wins.
    """

    def __init__(self, capacity: int = RING_TOKENS) -> None:
        if capacity < 1:
            raise ValueError(f"A history ring holds at least one token, not {capacity}.")
        self.capacity = capacity
        self._written = 0
        self._tokens = [0] * capacity
        self._next = [_NOWHERE] * capacity  # position of the same response's next token
        self._runs: list[tuple[Run, ...]] = [()] * capacity  # indexed runs that begin here, to forget with the place
        self._index = SuffixIndex()

    def __len__(self) -> int:
        """Tokens held."""
        return min(self._written, self.capacity)

    @property
    def indexed_runs(self) -> int:
        """Entries of the index: at most two per token held."""
        return len(self._index)

    def open(self, salt: str = "") -> Response:
        """Begin a response; it holds nothing until its first settled round."""
        return Response(salt)

    def extend(self, response: Response, tokens: Sequence[int]) -> None:
        """Append the tokens that one settled round committed.

        Raises:
            ValueError: the response is closed.
        """
        if response.closed:
            raise ValueError("A closed response takes no more tokens.")
        for token in tokens:
            self._append(response, token)
        del response.tokens[:-_LONGEST], response.places[:-_LONGEST]

    def close(self, response: Response) -> None:
        """End a response; its tokens stay until they are overwritten."""
        response.closed = True

    def continuation(self, query: Sequence[int], limit: int = COPY_TOKENS, salt: str = "") -> list[int]:
        """Tokens that followed the query's last eight, else four, tokens when these were last generated.

        Args:
            query: prompt and output so far; only its last eight tokens are read.
            limit: most tokens to return; fewer come back where the response ends or has not grown further.
            salt: only responses opened with the same salt are met.
        """
        found = self._index.find(query, (salt,))
        if found is None or limit < 1:
            return []
        place, skip = found
        for _ in range(skip):
            place = self._next[place % self.capacity]
        copied: list[int] = []
        while place != _NOWHERE and len(copied) < limit:
            copied.append(self._tokens[place % self.capacity])
            place = self._next[place % self.capacity]
        return copied

    def _append(self, response: Response, token: int) -> None:
        position = self._written
        place = position % self.capacity
        for run in self._runs[place]:
            self._index.forget(run, position - self.capacity)
        self._tokens[place], self._next[place], self._runs[place] = token, _NOWHERE, ()
        self._written += 1
        if response.places and self._holds(response.places[-1]):
            self._next[response.places[-1] % self.capacity] = position
        self._learn_runs(response)
        response.tokens.append(token)
        response.places.append(position)

    def _learn_runs(self, response: Response) -> None:
        """Index the runs that end before the token being appended, as far as the ring still holds them."""
        for length in RUN_TOKENS:
            if len(response.places) >= length and self._holds(begin := response.places[-length]):
                run = (response.salt, *response.tokens[-length:])
                self._index.learn(run, begin)
                self._runs[begin % self.capacity] += (run,)

    def _holds(self, position: int) -> bool:
        return position >= self._written - self.capacity


class ContextIndex:
    """One request's prompt and committed output, matched against their own last tokens; shared with nobody."""

    def __init__(self, prompt_tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._index = SuffixIndex()
        self.extend(prompt_tokens)

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append the tokens that one settled round committed."""
        known = len(self._tokens)
        self._tokens.extend(tokens)
        self._index.learn_sequence(self._tokens, known)

    def continuation(self, limit: int = COPY_TOKENS) -> list[int]:
        """Tokens that followed the last eight, else four, tokens when these were last seen before."""
        found = self._index.find(self._tokens)
        if found is None:
            return []
        begin, length = found
        return self._tokens[begin + length : begin + length + limit]
