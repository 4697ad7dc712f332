"""Survival: how likely the draft at each depth is accepted, given that all before it were.

Counts fade with each attempt, so an estimate follows a request that changes its ways. A request leans on the population
of its source until it has counts of its own, and the population leans on the recipe's prior.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from flare.contract.frames import Source

REQUEST_MEMORY = 8.0  # attempts after which a request's old counts weigh 1/e
POPULATION_MEMORY = 60.0
REQUEST_LEAN = 3.0  # attempts that a request's own counts need to weigh as much as the population


@dataclass(frozen=True)
class Prior:
    """What a recipe expects before anything was measured.

    Attributes:
        acceptance: conditional acceptance of each source, the same at every depth, in (0, 1).
        attempts: how many attempts that expectation is worth.
    """

    acceptance: Mapping[Source, float] = field(
        default_factory=lambda: {Source.LEARNED: 0.7, Source.HISTORY: 0.6, Source.CONTEXT: 0.6, Source.FORCED: 0.9}
    )
    attempts: float = 6.0


class _Counts:
    """Fading counts per depth (index 0 is the first draft): how often a draft was judged, how often it was accepted."""

    __slots__ = ("accepted", "judged", "keep")

    def __init__(self, memory: float) -> None:
        self.keep = 1.0 - 1.0 / memory
        self.judged: list[float] = []
        self.accepted: list[float] = []

    def add(self, offered: int, accepted: int) -> None:
        """Every offered depth fades, also those an early rejection left unjudged: old success there is old as well."""
        keep, judged, counts = self.keep, self.judged, self.accepted
        for _ in range(len(judged), offered):
            judged.append(0.0)
            counts.append(0.0)
        for depth in range(offered):
            if depth < accepted:
                judged[depth] = judged[depth] * keep + 1.0
                counts[depth] = counts[depth] * keep + 1.0
            else:
                judged[depth] = judged[depth] * keep + (depth == accepted)
                counts[depth] *= keep

    def means(self, expected: float, weight: float, depths: int) -> list[float]:
        """Per depth the posterior mean of a Beta prior with mean `expected`, worth `weight` attempts."""
        prior = expected * weight
        known = zip(self.accepted[:depths], self.judged[:depths], strict=True)
        means = [(prior + accepted) / (weight + judged) for accepted, judged in known]
        return means + [expected] * (depths - len(means))


class Survival:
    """Conditional acceptance per (request, source, depth)."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._population = {source: _Counts(POPULATION_MEMORY) for source in prior.acceptance}
        self._requests: dict[int, dict[Source, _Counts]] = {}
        self._usual: dict[Source, list[float]] = {}  # population means, until the next outcome

    def observe(self, request: int, source: Source, offered: int, accepted: int) -> None:
        """Count one settled lane.

        Raises:
            ValueError: more accepted than offered.
        """
        if not 0 <= accepted <= offered:
            raise ValueError(f"{accepted} of {offered} offered drafts cannot have been accepted.")
        if offered:
            own = self._requests.setdefault(request, {})
            if source not in own:
                own[source] = _Counts(REQUEST_MEMORY)
            own[source].add(offered, accepted)
            self._population[source].add(offered, accepted)
            self._usual.pop(source, None)

    def forget(self, request: int) -> None:
        """Drop a request's counts; the population keeps its share."""
        self._requests.pop(request, None)

    def acceptance(self, request: int, source: Source, depths: int) -> list[float]:
        """Conditional acceptance of drafts 1..depths.

        A request that does worse than the population at one depth is expected to do worse by the same factor at the
        next: deep drafts are rarely judged when early ones fail.
        """
        if not depths:
            return []
        usual = self._usual.get(source)
        if usual is None or len(usual) < depths:
            expected = self._prior.acceptance[source]
            usual = self._usual[source] = self._population[source].means(expected, self._prior.attempts, depths)
        own = self._requests.get(request, {}).get(source)
        if own is None:
            return usual[:depths]
        estimates: list[float] = []
        relative, known = 1.0, len(own.judged)
        for depth, mean in enumerate(usual[:depths]):
            estimate = mean * relative
            if depth < known:
                estimate = (estimate * REQUEST_LEAN + own.accepted[depth]) / (REQUEST_LEAN + own.judged[depth])
            relative = estimate / mean if estimate < mean else 1.0
            estimates.append(estimate)
        return estimates

    def emitted(self, request: int, source: Source, drafts: int) -> list[float]:
        """Expected emitted tokens with 0..drafts drafts: 1 + a₁ + a₁a₂ + …"""
        return list(accumulate(accumulate([1.0, *self.acceptance(request, source, drafts)], mul)))
