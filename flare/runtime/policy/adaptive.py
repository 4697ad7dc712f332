"""Adaptive policy: the prepared width with the most expected tokens per second of measured round time."""

from flare.runtime.policy.choice import (
    Choice,
    CohortView,
    Explanation,
    Option,
    RoundOutcome,
    Widths,
    checked_widths,
    choice_of,
    widths_of,
)
from flare.runtime.policy.costs import RoundCosts
from flare.runtime.policy.exploration import Exploration
from flare.runtime.policy.survival import Prior, Survival


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
        self._last = Explanation(None)

    def choose(self, cohort: CohortView) -> Choice:
        """The width with the best expected rate, ties to the smaller; a probe where savings pay for one."""
        widths = widths_of(self._widths, cohort.batch_capacity)
        deepest = max((lane.usable for lane in cohort.lanes), default=0)
        if not deepest:
            choice = choice_of(cohort, 1, "no lane has a draft")
            self._last = Explanation(choice, (), self.exploration.budget_seconds)
            return choice
        options = self._options(cohort, widths, deepest)
        best = max(options, key=lambda option: option.rate)  # ascending widths: the first of equals is the smallest
        probe = self.exploration.probe(best, [option for option in options if option.width > best.width])
        if probe is not None:
            choice = choice_of(cohort, probe.width, f"probe, best is width {best.width}")
        elif best.width == 1:
            choice = choice_of(cohort, 1, "drafts do not pay")
        else:
            choice = choice_of(cohort, best.width, "best expected rate")
        self._last = Explanation(choice, tuple(options), self.exploration.budget_seconds)
        return choice

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

    def explain(self) -> Explanation:
        """The widths that the last choice compared."""
        return self._last

    def _options(self, cohort: CohortView, widths: tuple[int, ...], deepest: int) -> list[Option]:
        """Every width that offers more than the one before it, ascending."""
        seconds = self.costs.of_batch(cohort.batch_capacity)
        gains = [self.survival.emitted(lane.request, lane.source, lane.usable) for lane in cohort.lanes]
        options: list[Option] = []
        for width in widths:
            emitted = sum(totals[min(width, len(totals)) - 1] for totals in gains)
            options.append(Option(width, emitted, seconds[width]))
            if width > deepest:
                break
        return options
