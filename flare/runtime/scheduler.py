"""What runs next: admission in order of arrival, prompt chunks in turns with rounds of the running cohort."""

from collections import deque

import numpy as np

from flare.contract.frames import Source
from flare.contract.manifest import PAGE_TOKENS, Extent
from flare.errors import CapacityError
from flare.runtime.catalog import Catalog
from flare.runtime.copies import NOTHING, Copies, Offer
from flare.runtime.launches import Launch
from flare.runtime.memory.pages import Pages
from flare.runtime.memory.slots import Slots
from flare.runtime.policy import CohortView, LaneView, Policy
from flare.runtime.requests import Request, State


class Scheduler:
    """Owns slots and pages, and decides each launch.

    A request is admitted when a slot and every page it can ever need are free; the first in the queue is never
    overtaken. Of several running cohorts' worth of requests the least recently served come first.
    """

    def __init__(self, catalog: Catalog, extent: Extent, copies: Copies, policy: Policy) -> None:
        self.pages = Pages(extent.pages)
        self.slots = Slots(extent.slots)
        self._catalog = catalog
        self._extent = extent
        self._copies = copies
        self._policy = policy
        self._waiting: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._running: list[Request] = []
        self._chunk_was_last = False

    @property
    def waiting(self) -> int:
        """Requests that hold nothing yet."""
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError: it could not be admitted even alone.
        """
        needed = pages_for(request)
        if needed > self.pages.total:
            asked = f"A prompt of {request.prompt_tokens} tokens with max_tokens={request.policy.max_tokens}"
            raise CapacityError(
                f"{asked} needs {needed} pages of this core's {self.pages.total}: "
                "lower sampling.max_tokens or raise preparation.memory_bytes."
            )
        self._waiting.append(request)

    def next(self, round_in_flight: bool) -> Launch | None:
        """The next launch, or None when nothing can start before something in flight settles.

        Chunks and rounds alternate while both are ready, so neither a long prompt nor a busy cohort holds up the other.
        One round is in flight at a time: its tokens are what the next one's copies are anchored to.
        """
        self._admit()
        round_ready = bool(self._running) and not round_in_flight
        if round_ready and (self._chunk_was_last or not self._prefilling):
            return self._round()
        return self._chunk() if self._prefilling else None

    def run(self, request: Request) -> None:
        """Let a request whose prompt is consumed take part in rounds."""
        request.state = State.RUNNING
        self._running.append(request)

    def drop(self, request: Request) -> None:
        """Never name the request in a launch again; it keeps what it holds."""
        for queue in (self._waiting, self._prefilling, self._running):
            if request in queue:
                queue.remove(request)

    def retire(self, request: Request) -> None:
        """Free everything the request holds; no queued graph may name it."""
        self.drop(request)
        if request.state is not State.WAITING:
            self.slots.release(request.slot)
            self.pages.release(request.pages)
            self._copies.close(request)
            self._policy.forget(request.id)
        request.pages = ()
        request.state = State.FINISHED

    def _admit(self) -> None:
        while self._waiting and self.slots.free and pages_for(self._waiting[0]) <= self.pages.free:
            request = self._waiting.popleft()
            request.slot, request.generation = self.slots.take()
            request.pages = self.pages.take(pages_for(request))
            request.table = np.full(self._extent.pages_per_request, self._extent.null_page, np.int32)
            request.table[: len(request.pages)] = request.pages
            request.state = State.PREFILLING
            self._copies.open(request)
            self._prefilling.append(request)

    def _chunk(self) -> Launch:
        """Admit the oldest prefilling request to the device, or queue the next part of its prompt."""
        request = self._prefilling[0]
        if not request.initialised:
            request.initialised = True
            return Launch(self._catalog.init, (request,))
        start = request.prefilled_tokens
        graph, count = self._catalog.chunk(request.prompt_tokens - start)
        request.prefilled_tokens += count
        if request.prefilled_tokens == request.prompt_tokens:
            self._prefilling.popleft()
        self._chunk_was_last = True
        return Launch(graph, (request,), start=start, count=count)

    def _round(self) -> Launch:
        lanes = self._catalog.lanes
        cohort = tuple(self._running[:lanes])
        if len(self._running) > lanes:
            self._running = self._running[lanes:] + self._running[:lanes]
        self._chunk_was_last = False
        batch = self._catalog.batch_capacity(len(cohort))
        if not self._catalog.speculative:
            return Launch(self._catalog.round(batch, 1), cohort)
        return self._speculative(batch, cohort)

    def _speculative(self, batch: int, cohort: tuple[Request, ...]) -> Launch:
        offers = tuple(self._copies.offer(request) for request in cohort)
        views = tuple(self._view(request, offer) for request, offer in zip(cohort, offers, strict=True))
        choice = self._policy.choose(CohortView(batch, views))
        graph = self._catalog.round(batch, choice.width)
        if choice.width == 1:
            offers = (NOTHING,) * len(cohort)
        return Launch(graph, cohort, offers=offers, ceilings=choice.ceilings)

    def _view(self, request: Request, offer: Offer) -> LaneView:
        """A lane may draft one token less than its budget leaves: the round adds one of its own."""
        deepest = self._extent.width - 1
        ceiling = min(request.draft_limit, request.left_tokens - 1, deepest)
        drafts = deepest if self._catalog.learned else len(offer.tokens)
        learned = self._catalog.learned and not offer.tokens
        return LaneView(request.id, drafts, Source.LEARNED if learned else offer.source, ceiling)


def pages_for(request: Request) -> int:
    """Pages that hold every token the request can ever consume."""
    return -(-request.reserved_tokens // PAGE_TOKENS)
