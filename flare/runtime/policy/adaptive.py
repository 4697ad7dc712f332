"""Adaptive policy: the prepared width with the most expected tokens per second of measured round time."""

from collections import deque

from flare.runtime.policy.choice import (
    EXPLAINED_CHOICES,
    Choice,
    CohortView,
    Explanation,
    LaneView,
    Option,
    RoundOutcome,
    Widths,
    capacity_of,
    checked_widths,
    choice_of,
    widths_of,
)
from flare.runtime.policy.costs import RoundCosts
from flare.runtime.policy.exploration import Exploration
from flare.runtime.policy.grouping import split_of
from flare.runtime.policy.survival import Prior, Survival

PLAIN_ROUNDS = 3  # measured before the first wide round of a batch capacity: what every wider one is held against


def adaptive(widths_by_batch: Widths, prior: Prior, exploration_share: float) -> "Adaptive":
    """The policy that weighs survival against cost; its `costs` may be seeded from warm-up timings."""
    widths = checked_widths(widths_by_batch)
    return Adaptive(widths, Survival(prior), RoundCosts(widths), Exploration(exploration_share))


class Adaptive:
    """Maximises Σ E[emitted] / cost over the lanes of each round.

    Attributes:
        survival, costs, exploration: what it has learned; `costs.seed` takes warm-up timings.
    """

    def __init__(
        self,
        widths_by_batch: dict[int, tuple[int, ...]],
        survival: Survival,
        costs: RoundCosts,
        exploration: Exploration,
    ) -> None:
        self.survival = survival
        self.costs = costs
        self.exploration = exploration
        self._widths = widths_by_batch
        self._widest = max(max(widths) for widths in widths_by_batch.values())
        self._capacities = [capacity_of(widths_by_batch, lanes) for lanes in range(max(widths_by_batch) + 1)]
        self._explained: deque[Explanation] = deque(maxlen=EXPLAINED_CHOICES)

    def choose(self, cohort: CohortView) -> Choice:
        """The width with the best expected rate, ties to the smaller; a probe where savings pay for one.

        Lanes that fare better in a round of their own wait for the next one: the first lane's group goes now.
        """
        choice, options = self._decide(cohort)
        self._explained.append(Explanation(choice, tuple(options), self.exploration.budget_seconds))
        return choice

    def _decide(self, cohort: CohortView) -> tuple[Choice, list[Option]]:
        batch, lanes = cohort.batch_capacity, tuple(range(len(cohort.lanes)))
        widths_of(self._widths, batch)
        if not any(lane.usable for lane in cohort.lanes):
            return choice_of(cohort, 1, "no lane has a draft"), []
        if self.costs.measured((batch, 1)) < PLAIN_ROUNDS:
            return choice_of(cohort, 1, "plain rounds of this batch are being measured"), []
        emitted = [self._emitted(lane) for lane in cohort.lanes]
        options = self._options(cohort, batch, lanes, emitted)
        best = _best(options)
        split = split_of(emitted, best, self._seconds) if len(lanes) > 1 else None
        if split is not None:
            lanes = split.better if 0 in split.better else split.worse
            batch = self._capacities[len(lanes)]
            options = self._options(cohort, batch, lanes, [emitted[lane] for lane in lanes])
            best = _best(options)
        probe = self.exploration.probe(best, [option for option in options if option is not best])
        if probe is not None:
            return choice_of(cohort, probe.width, f"probe, best is width {best.width}", lanes), options
        if split is not None:
            return choice_of(cohort, best.width, "best expected rate, of lanes that fare alike", lanes), options
        return choice_of(cohort, best.width, "best expected rate" if best.width > 1 else "drafts do not pay"), options

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn survival from every lane, cost and savings from a measured round."""
        for request, source, offered, accepted in outcome.lanes:
            self.survival.observe(request, source, offered, accepted)
        if outcome.seconds is None:
            return
        self.costs.observe((outcome.batch_capacity, outcome.width), outcome.seconds)
        if outcome.width > 1 and outcome.lanes:
            per_lane = 1 + sum(accepted for _, _, _, accepted in outcome.lanes) / len(outcome.lanes)
            plain_seconds = per_lane * self.costs.of_batch(outcome.batch_capacity)[1]
            self.exploration.settle(plain_seconds - outcome.seconds, outcome.seconds)

    def forget(self, request: int) -> None:
        """Drop a retired request; what it taught about its sources stays."""
        self.survival.forget(request)

    def explain(self) -> tuple[Explanation, ...]:
        """The last choices with the widths they compared."""
        return tuple(self._explained)

    def _seconds(self, lanes: int) -> dict[int, float]:
        """Seconds of every width of a round of so many lanes."""
        return self.costs.of_batch(self._capacities[lanes])

    def _emitted(self, lane: LaneView) -> list[float]:
        """Expected emitted tokens of one lane by width, from 0 to the widest prepared one."""
        totals = self.survival.emitted(lane.request, lane.source, lane.usable)
        return [0.0, *totals[: self._widest], *totals[-1:] * (self._widest - len(totals))]

    def _options(
        self, cohort: CohortView, batch: int, lanes: tuple[int, ...], emitted: list[list[float]]
    ) -> list[Option]:
        """Every width that offers more than the one before it, ascending, for lanes with their expected tokens."""
        seconds = self.costs.of_batch(batch)
        deepest = max([cohort.lanes[lane].usable for lane in lanes])
        totals = list(map(sum, zip(*emitted, strict=True)))
        options: list[Option] = []
        for width, cost in seconds.items():
            options.append(Option(width, totals[width], cost, self.costs.measured((batch, width))))
            if width > deepest:
                break
        return options


def _best(options: list[Option]) -> Option:
    """The best expected rate; widths ascend, so the first of equals is the smallest."""
    return max(options, key=lambda option: option.rate)
