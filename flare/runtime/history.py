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
        scope: what its indexed runs begin with, so that only queries of its tenant meet them.
        tokens, positions: its last eight tokens and the ring positions they were given.
    """

    __slots__ = ("closed", "positions", "scope", "tokens")

    def __init__(self, scope: Run) -> None:
        self.scope = scope
        self.tokens: list[int] = []
        self.positions: list[int] = []
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
        self._next = [_NOWHERE] * capacity  # place of the same response's next token
        # By place, the indexed run of each length that begins there: to forget with it.
        self._runs: list[tuple[int, list[Run]]] = [(length, [()] * capacity) for length in RUN_TOKENS]
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
        return Response(_scope(salt))

    def extend(self, response: Response, tokens: Sequence[int]) -> None:
        """Append the tokens that one settled round committed.

        Raises:
            ValueError: the response is closed.
        """
        if response.closed:
            raise ValueError("A closed response takes no more tokens.")
        positions, scope, known = response.positions, response.scope, len(response.positions)
        window = (*response.tokens, *tokens)  # slices of a tuple are keys as they are
        for end in range(known, len(window)):
            position = self._place(window[end])
            oldest = position + 1 - self.capacity
            if end and positions[-1] >= oldest:
                self._next[positions[-1] % self.capacity] = position % self.capacity
            for length, runs in self._runs:  # those that end before this token, as far as the ring still holds them
                if end >= length and (begin := positions[end - length]) >= oldest:
                    runs[begin % self.capacity] = run = scope + window[end - length : end]
                    self._index.learn(run, begin)
            positions.append(position)
        response.tokens += tokens
        del response.tokens[:-_LONGEST], positions[:-_LONGEST]

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
        found = self._index.find(query, _scope(salt))
        if found is None or limit < 1:
            return []
        tokens, following = self._tokens, self._next
        begin, skip = found
        place = begin % self.capacity
        for _ in range(skip):
            place = following[place]
        copied: list[int] = []
        while place != _NOWHERE and len(copied) < limit:
            copied.append(tokens[place])
            place = following[place]
        return copied

    def _place(self, token: int) -> int:
        """Write one token over the oldest and forget what began there; returns its position."""
        position = self._written
        place = position % self.capacity
        if position >= self.capacity:
            for _, runs in self._runs:
                self._index.forget(runs[place], position - self.capacity)
                runs[place] = ()
        self._tokens[place], self._next[place] = token, _NOWHERE
        self._written += 1
        return position


def _scope(salt: str) -> Run:
    """What the runs of a tenant begin with: no token equals a string."""
    return (salt,) if salt else ()


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
