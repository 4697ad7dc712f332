"""The memory of a core by id: slots, pages and snapshots, who holds them, and what the prefix index may keep."""

from collections.abc import Iterable

import numpy as np

from flare.contract.manifest import PAGE_TOKENS, Extent
from flare.runtime.memory.pages import Pages
from flare.runtime.memory.prefix import Hit, Match, Prefixes, Run
from flare.runtime.memory.radix import NONE, Endpoint
from flare.runtime.memory.slots import Slots
from flare.runtime.memory.snapshots import Snapshots
from flare.runtime.memory.trail import Trail
from flare.runtime.requests import Request

NO_MATCH = Match(None, 0)


class Memory:
    """Gives requests what they hold and takes it back; cached prefixes make room when a request needs it.

    A request holds the pages of its tokens so far and of two rounds at their longest, and grows. What it shares with
    the prefix index is counted, so a page is free when nobody refers to it.

    Attributes:
        prefixes: None where nothing is cached.
        hit_tokens: prompt tokens ever taken from the cache instead of run.
    """

    def __init__(self, extent: Extent, caching: bool, absorbing: bool) -> None:
        """Args: caching: the core can restore a prefix and is asked to; absorbing: see `Prefixes`."""
        self.pages = Pages(extent.pages)
        self.slots = Slots(extent.slots)
        self.snapshots = Snapshots(extent.snapshots if caching else 0)
        self.prefixes = Prefixes(self.pages, self.snapshots, extent.paged, absorbing) if caching else None
        self.hit_tokens = 0
        self._extent = extent

    def admit(self, request: Request, spare_pages: int) -> bool:
        """Give a request a slot and pages to begin with, what is cached of it included; False where they are held.

        Args:
            spare_pages: pages to leave free for those that run, which would have to be preempted soon otherwise.
        """
        match = NO_MATCH
        if self.prefixes is not None and request.prompt_logprobs is None:  # a restored prompt is not scored
            samples = not request.generated_tokens
            match = self.prefixes.find(request.tokens, request.salt, request.unsampled_tokens, samples)
        admitted = self._begin(request, match, spare_pages)
        if not admitted and match.hit is not None and self.slots.free == self.slots.total:
            # A hit may cost a page more than the request alone: the one it copies from.
            admitted = self._begin(request, NO_MATCH, 0)
        return admitted

    def extend(self, request: Request, tokens: int) -> bool:
        """Let a request consume `tokens` tokens in all, or as many as it ever will; False where the pages are held."""
        if tokens <= len(request.pages) * PAGE_TOKENS:
            return True
        missing = _pages_of(min(tokens, request.reserved_tokens)) - len(request.pages)
        if missing <= 0:
            return True
        if not self._make_room(missing):
            return False
        self._add(request, self.pages.take(missing, request.pages[-1]))
        return True

    def release(self, request: Request) -> None:
        """Take back everything a request holds; no queued graph may name it."""
        self.drop_hit(request)
        for row in (request.trail.row, request.trail.last_row):
            if row != NONE:
                self.snapshots.release(row)
        self.slots.release(request.slot)
        self.pages.release(request.pages)
        request.pages = ()
        request.trail = Trail()

    def drop_hit(self, request: Request) -> None:
        """The restore is over or will not run: let go of what it read."""
        hit, request.trail.hit = request.trail.hit, None
        if hit is not None:
            self._unpin(hit)

    def take_snapshot(self) -> int:
        """A row to write, with one reference; the least recently used prefix gives way. NONE where all are in use."""
        if self.prefixes is None or not self.snapshots.total:
            return NONE
        if not self.snapshots.free and not self.prefixes.evict_snapshot():
            return NONE
        return self.snapshots.take()

    def publish(self, request: Request, consumed: int, snapshot: int) -> Endpoint | None:
        """Keep a settled prefix of a request; takes over the reference to the row. NONE keeps whole pages alone."""
        if self.prefixes is None or (snapshot == NONE and not self._extent.paged):
            return None
        run = Run(request.salt, request.tokens, request.pages, request.trail.node)
        request.trail.node, endpoint = self.prefixes.publish(run, consumed, snapshot)
        return endpoint

    def publish_chunk(self, request: Request, consumed: int, snapshot: int) -> None:
        """Keep the end of a chunk; what the one before it is worth less now, unless it is a branch."""
        endpoint, trail = self.publish(request, consumed, snapshot), request.trail
        if self.prefixes is not None and trail.chunk_end is not None:
            self.prefixes.demote(trail.chunk_end)
        trail.chunk_end = endpoint if consumed not in (request.prompt_tokens, trail.branch) else None

    def check(self, holders: Iterable[Request], named_snapshots: Iterable[int]) -> None:
        """Raise AssertionError unless every page, slot and snapshot is free or held by exactly those who say so.

        Args:
            holders: every request that has a slot; named_snapshots: the rows that launches in flight refer to.
        """
        holders = list(holders)
        pages: list[int] = []
        snapshots = [*named_snapshots]
        for request in holders:
            pages += request.pages
            snapshots += [row for row in (request.trail.row, request.trail.last_row) if row != NONE]
            if request.trail.hit is not None:
                pages += [page for page in (request.trail.hit.copied,) if page != NONE]
                snapshots += [row for row in (request.trail.hit.snapshot,) if row != NONE]
            assert len(set(request.pages)) == len(request.pages), f"request {request.id} holds a page twice"
            assert request.table[: len(request.pages)].tolist() == list(request.pages), "a page table is outdated"
        if self.prefixes is not None:
            self.prefixes.check()
            cached_pages, cached_snapshots = self.prefixes.references()
            pages += cached_pages
            snapshots += cached_snapshots
        self.pages.check()
        self.snapshots.check()
        self.slots.check(request.slot for request in holders)
        assert (np.bincount(pages, minlength=self.pages.total) == self.pages.counts()).all(), "a page is leaked"
        expected = np.bincount(snapshots, minlength=self.snapshots.total)
        found = [self.snapshots.references(row) for row in range(self.snapshots.total)]
        assert expected.tolist() == found, "a snapshot is leaked"

    def _begin(self, request: Request, match: Match, spare_pages: int) -> bool:
        hit = match.hit
        shared = hit.shared if hit is not None else ()
        least = min(request.unsampled_tokens + 2 * self._extent.width, request.reserved_tokens)
        missing = _pages_of(least) - len(shared)
        if hit is not None:
            self._pin(hit)
        if not self._make_room(missing + spare_pages):
            if hit is not None:
                self._unpin(hit)
                self.pages.release(shared)
            return False
        request.slot, request.generation = self.slots.take()
        request.table = np.full(self._extent.pages_per_request, self._extent.null_page, np.int32)
        request.pages = ()
        self._add(request, (*shared, *self.pages.take(missing, shared[-1] if shared else None)))
        request.trail = Trail(hit, branch=match.branch)
        request.prefilled_tokens = hit.consumed if hit is not None else 0
        if not request.preemptions:
            request.cached_tokens = request.prefilled_tokens
            self.hit_tokens += request.cached_tokens
        return True

    def _add(self, request: Request, pages: tuple[int, ...]) -> None:
        held = len(request.pages)
        request.table[held : held + len(pages)] = pages
        request.pages += pages
        request.epoch += 1

    def _pin(self, hit: Hit) -> None:
        """Refer to the shared pages for good, to the rest until the restore is over."""
        self.pages.share(hit.shared)
        if hit.copied != NONE:
            self.pages.share((hit.copied,))
        if hit.snapshot != NONE:
            self.snapshots.share(hit.snapshot)

    def _unpin(self, hit: Hit) -> None:
        if hit.copied != NONE:
            self.pages.release((hit.copied,))
        if hit.snapshot != NONE:
            self.snapshots.release(hit.snapshot)

    def _make_room(self, count: int) -> bool:
        """Have `count` pages free; nothing is evicted where that would not be enough."""
        if self.pages.free >= count:
            return True
        if self.prefixes is None or self.pages.free + self.pages.only_held_by(self.prefixes.held) < count:
            return False
        while self.pages.free < count:
            self.prefixes.evict()
        return True


def pages_for(request: Request) -> int:
    """Pages that hold every token the request can ever consume."""
    return _pages_of(request.reserved_tokens)


def _pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)
