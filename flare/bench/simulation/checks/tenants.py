"""Tenants: a request may begin only from a prefix that another one of the same salt has consumed."""

from collections import deque

from flare.bench.simulation.checks.case import Case
from flare.bench.simulation.scripted.faults import require

REMEMBERED = 200  # requests per salt; a prefix that was not met for longer has been evicted


class Tenants:
    """Every salt's latest requests, by the tokens they go on to consume."""

    def __init__(self) -> None:
        self._known: dict[str | None, deque[list[int]]] = {}

    def begin(self, case: Case) -> None:
        """From now on others may begin from what this request consumes."""
        known = self._known.setdefault(case.wish.sampling.cache_salt, deque(maxlen=REMEMBERED))
        known.append(case.handle.tokens)

    def end(self, case: Case) -> None:
        """Require what the request was given from the cache to be its own tenant's."""
        cached = case.handle.cached_tokens
        if not cached:
            return
        prefix = list(case.wish.prompt[:cached])
        known = self._known[case.wish.sampling.cache_salt]
        others = (tokens for tokens in known if tokens is not case.handle.tokens)
        require(any(tokens[:cached] == prefix for tokens in others), "a prefix was cached for another tenant")
