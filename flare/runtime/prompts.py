"""Prompts on their way into a slot: init, what is cached, then chunks; a parked request comes back the same way."""

from flare.runtime.catalog import Catalog
from flare.runtime.launches import Launch
from flare.runtime.memory.memory import Memory
from flare.runtime.memory.radix import NONE
from flare.runtime.requests import Request


class Prompts:
    """Makes the launches that consume what precedes the first round of a request.

    Of a new request the last one samples. A parked request has a pending token already, which init brings back: its
    chunks only move the state on.
    """

    def __init__(self, catalog: Catalog, memory: Memory) -> None:
        self._catalog = catalog
        self._memory = memory

    def launch(self, request: Request) -> Launch:
        """The next launch of a request that has not consumed all it must."""
        if not request.initialised:
            request.initialised = True
            return Launch(self._catalog.init, (request,))
        trail = request.trail
        if trail.hit is not None and not trail.restoring:
            trail.restoring = True
            return self._restore(request)
        return self._chunk(request)

    def _restore(self, request: Request) -> Launch:
        hit, graph = request.trail.hit, self._catalog.restore
        assert hit is not None
        assert graph is not None
        whole = hit.consumed == request.unsampled_tokens and not request.generated_tokens
        return Launch(graph, (request,), hit.consumed, rows=(hit.snapshot,), restored=whole)

    def _chunk(self, request: Request) -> Launch:
        """Part of the prompt, cut where it leaves what others share, so that the next of them can begin there."""
        start, again = request.prefilled_tokens, request.generated_tokens > 0
        left, branch = request.unsampled_tokens - start, request.trail.branch - start
        if again or branch > 0:
            graph, count = self._catalog.resume(left if again else branch)
        else:
            graph, count = self._catalog.chunk(left, request.prompt_logprobs is not None)
        request.prefilled_tokens += count
        row = NONE if again else self._memory.take_snapshot()
        return Launch(graph, (request,), start, count, rows=(row,))
