"""Which continuation a lane is offered: from the shared history, else from the request's own context."""

from collections.abc import Sequence
from typing import NamedTuple

from flare.contract.frames import COPY_TOKENS, Source
from flare.runtime.history import ContextIndex, History
from flare.runtime.requests import Request

QUERY_TOKENS = 8  # the longest suffix the indexes match


class Offer(NamedTuple):
    """Tokens that followed the same suffix before; none is an empty offer."""

    tokens: list[int]
    source: Source


NOTHING = Offer([], Source.HISTORY)


class Copies:
    """The copy sources an engine serves, and the hooks that keep them fed with committed tokens only."""

    def __init__(self, history: bool, context: bool) -> None:
        self._history = History() if history else None
        self._context = context
        self._offers: dict[int, tuple[int, Offer]] = {}  # by request: the tokens it had then, and what may follow

    def open(self, request: Request) -> None:
        """Begin a response; the prompt may be searched for, and enters only the request's own context."""
        if self._history is not None:
            request.response = self._history.open(request.salt)
        if self._context and request.draft_limit > 0:
            request.context = ContextIndex(request.tokens)

    def offer(self, request: Request) -> Offer:
        """What may follow the last token the host knows; looked up once for each."""
        if request.draft_limit == 0:
            return NOTHING
        known, offer = self._offers.get(request.id, (0, NOTHING))
        if known != len(request.tokens):
            offer = self._look_up(request)
            self._offers[request.id] = len(request.tokens), offer
        return offer

    def _look_up(self, request: Request) -> Offer:
        if self._history is not None:
            tokens = self._history.continuation(request.tokens[-QUERY_TOKENS:], COPY_TOKENS, request.salt)
            if tokens:
                return Offer(tokens, Source.HISTORY)
        if request.context is not None:
            tokens = request.context.continuation(limit=COPY_TOKENS)
            if tokens:
                return Offer(tokens, Source.CONTEXT)
        return NOTHING

    def extend(self, request: Request, tokens: list[int]) -> None:
        """Add generated tokens that were validated and kept."""
        if self._history is not None and request.response is not None:
            self._history.extend(request.response, tokens)
        if request.context is not None:
            request.context.extend(tokens)

    def remember(self, tokens: Sequence[int]) -> None:
        """Add a whole response that this recipe generated earlier, under another engine."""
        if self._history is not None:
            response = self._history.open()
            self._history.extend(response, tokens)
            self._history.close(response)

    def close(self, request: Request) -> None:
        """End the response."""
        self._offers.pop(request.id, None)
        if self._history is not None and request.response is not None:
            self._history.close(request.response)
            request.response = None
        request.context = None
