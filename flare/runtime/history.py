"""What drafts are copied from: the shared ring of committed generated tokens, and each request's own context.

Responses may be written to the ring in turns; each keeps its tokens together, so a continuation never runs from one
into another. What the ring overwrites leaves the index in the same step: a match needs all its tokens to be held still.
"""

from collections.abc import Sequence

from flare.contract.frames import COPY_TOKENS
from flare.runtime.suffix_index import LONGEST_RUN, TOKEN_BYTES, SuffixIndex, packed

RING_TOKENS = 65_536
_NO_RUN = b""
_NOWHERE = -1


class Response:
    """One response being written; opened by `History.open` and grown only by it.

    Attributes:
        scope: what its indexed runs end in, so that only queries of its tenant meet them.
        output: all its tokens, kept as long as the ring holds the last one.
        window, positions: the last eight, packed, and the ring positions they were given.
    """

    __slots__ = ("closed", "output", "positions", "scope", "window")

    def __init__(self, scope: bytes) -> None:
        self.scope = scope
        self.output: list[int] = []
        self.window = b""
        self.positions: list[int] = []
        self.closed = False

    @property
    def tokens(self) -> list[int]:
        """The last eight."""
        return self.output[-LONGEST_RUN:]


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
        # By place: whose token lies there, and which of its tokens that is.
        self._responses = [Response(b"")] * capacity
        self._offsets = [0] * capacity
        self._index = SuffixIndex()
        # With every length of the index, by place, the run whose newest beginning lies there: to forget with it.
        self._runs = [(length, begins, [_NO_RUN] * capacity) for length, begins in self._index.begins.items()]

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
        window, scope, positions = response.window + packed(tokens), response.scope, response.positions
        capacity, known = self.capacity, len(positions)
        for end, offset in enumerate(range(len(response.output), len(response.output) + len(tokens)), known):
            position = self._written
            place, oldest = position % capacity, position + 1 - capacity
            if oldest > 0:
                self._forget(place)
            self._responses[place], self._offsets[place] = response, offset
            for length, begins, runs in self._runs:  # those that end before this token, and are held still
                if end >= length and (begin := positions[end - length]) >= oldest:
                    run = window[(end - length) * TOKEN_BYTES : end * TOKEN_BYTES] + scope
                    older = begins.get(run, _NOWHERE)
                    if older < begin:
                        begins[run], runs[begin % capacity] = begin, run
                        if older != _NOWHERE:
                            runs[older % capacity] = _NO_RUN
            positions.append(position)
            self._written = position + 1
        response.output += tokens
        response.window = window[-LONGEST_RUN * TOKEN_BYTES :]
        del positions[:-LONGEST_RUN]

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
        found = self._index.find(packed(query[-LONGEST_RUN:]), _scope(salt))
        if found is None:
            return []
        begin, length = found
        place = begin % self.capacity
        following = self._offsets[place] + length
        return self._responses[place].output[following : following + limit]

    def _forget(self, place: int) -> None:
        """Drop the runs that begin in a place from the index, where no newer one like them is there."""
        for _, begins, runs in self._runs:
            if runs[place]:
                del begins[runs[place]]
                runs[place] = _NO_RUN


def _scope(salt: str) -> bytes:
    """What the runs of a tenant end in: runs of one length differ in it where the salts do."""
    return salt.encode("utf-8", "surrogatepass")


class ContextIndex:
    """One request's prompt and committed output, matched against their own last tokens; shared with nobody."""

    def __init__(self, prompt_tokens: Sequence[int]) -> None:
        self._tokens = list(prompt_tokens)
        self._indexed = 0
        self._index = SuffixIndex()

    def __len__(self) -> int:
        """Tokens held."""
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append the tokens that one settled round committed; they are indexed when a continuation is asked for."""
        self._tokens += tokens

    def continuation(self, limit: int = COPY_TOKENS) -> list[int]:
        """Tokens that followed the last eight, else four, tokens when these were last seen before."""
        found = self._index.find(self._learn())
        if found is None:
            return []
        begin, length = found
        return self._tokens[begin + length : begin + length + limit]

    def _learn(self) -> bytes:
        """Index every run that gained a next token; returns the last tokens, eight at least where there are so many."""
        tokens, origin = self._tokens, max(0, self._indexed - LONGEST_RUN)
        window = packed(tokens[origin:])
        for length, begins in self._index.begins.items():
            size_bytes = length * TOKEN_BYTES
            for begin in range(max(0, self._indexed - length), len(tokens) - length):
                from_byte = (begin - origin) * TOKEN_BYTES
                begins[window[from_byte : from_byte + size_bytes]] = begin
        self._indexed = len(tokens)
        return window
