"""Rounds: which running requests share the next one, what each lane is offered, and the snapshot rows it may write."""

from collections.abc import Sequence

from flare.contract.frames import Source
from flare.contract.manifest import Extent
from flare.runtime.catalog import Catalog
from flare.runtime.constraints.offers import legal_offer
from flare.runtime.copies import NOTHING, Copies, Offer
from flare.runtime.launches import Launch
from flare.runtime.memory.boundaries import boundary_row
from flare.runtime.memory.memory import Memory
from flare.runtime.policy import CohortView, LaneView, Policy
from flare.runtime.requests import Request


class Cohorts:
    """Makes rounds. A request may be named by two that are queued: the second goes on from what the device holds."""

    def __init__(self, catalog: Catalog, extent: Extent, copies: Copies, policy: Policy, memory: Memory) -> None:
        self._catalog = catalog
        self._extent = extent
        self._copies = copies
        self._policy = policy
        self._memory = memory

    def ready(self, running: Sequence[Request]) -> list[Request]:
        """The next cohort, in the given order; empty where it is better to wait.

        Left out is who will have ended by then for certain (every queued launch adds a token), and who must know its
        last token first. Where such a one is about to come back and a lane is free for it, the others wait with it:
        rounds that took turns would serve each of them half as often.
        """
        ready: list[Request] = []
        active, returning = 0, False
        for request in running:
            queued = request.queued
            if request.parking or request.left_tokens <= queued.samplings:
                continue
            active += 1
            if not queued.samplings or not self._needs_its_last_token(request):
                ready.append(request)
            elif queued.rounds:
                returning = True
        if returning and len(ready) < min(self._catalog.lanes, active):
            return []
        return ready[: self._catalog.lanes]

    def round(self, cohort: Sequence[Request]) -> Launch:
        """The round of those lanes of a cohort that the policy chooses."""
        if not self._catalog.speculative:
            graph = self._catalog.round(self._catalog.batch_capacity(len(cohort)), 1)
            return Launch(graph, tuple(cohort), rows=self._rows(cohort))
        offers = [self._offer(request) for request in cohort]
        views = tuple(self._view(request, offer) for request, offer in zip(cohort, offers, strict=True))
        choice = self._policy.choose(CohortView(self._catalog.batch_capacity(len(cohort)), views))
        chosen = tuple(cohort[lane] for lane in choice.lanes)
        graph = self._catalog.round(self._catalog.batch_capacity(len(chosen)), choice.width)
        given = tuple(offers[lane] if choice.width > 1 else NOTHING for lane in choice.lanes)
        return Launch(graph, chosen, offers=given, ceilings=choice.ceilings, rows=self._rows(chosen))

    def _needs_its_last_token(self, request: Request) -> bool:
        """Whether the next round must, or had better, wait until the queued ones have settled.

        Without a learned drafter, what a round can offer is copied behind the last token the host knows. Behind a
        queued round only the rest of that copy is left, and nothing of it where one queued draft is rejected: that
        would cost a round of drafts to save the host's share of one. So copies are offered one round at a time, and
        rounds overlap where there is nothing to copy.
        """
        if request.serial:
            return True
        if self._catalog.learned or not self._catalog.speculative:
            return False
        drafting = request.queued.tokens > request.queued.samplings
        return drafting or bool(self._copies.offer(request).tokens)

    def _rows(self, lanes: Sequence[Request]) -> tuple[int, ...]:
        if not self._memory.snapshots.total:
            return ()
        return tuple(boundary_row(self._memory, request, self._extent.width) for request in lanes)

    def _offer(self, request: Request) -> Offer:
        """A continuation of the last token the host knows, if it reaches beyond what queued rounds can take of it."""
        offer = legal_offer(request, self._copies.offer(request))
        return offer if len(offer.tokens) > request.queued.tokens else NOTHING

    def _view(self, request: Request, offer: Offer) -> LaneView:
        """What the policy may know of a lane.

        The ceiling leaves the round's own token, and one for each queued launch, of the budget. Queued drafts may take
        more of it; the device, which knows, offers less then. So a lane's drafts do not depend on how many rounds were
        queued when it was given them.
        """
        deepest = self._extent.width - 1
        queued = request.queued
        ceiling = min(request.draft_limit, request.left_tokens - queued.samplings - 1, deepest)
        learns = self._catalog.learned and request.constraint is None  # learned drafts would lack masks
        drafts = deepest if learns else max(0, len(offer.tokens) - queued.tokens)
        learned = learns and not offer.tokens
        return LaneView(request.id, drafts, Source.LEARNED if learned else offer.source, ceiling)
