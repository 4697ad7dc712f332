"""How wide the next round is: survival of drafts × measured cost of rounds, or one fixed width."""

from flare.runtime.policy.adaptive import Adaptive, adaptive
from flare.runtime.policy.choice import (
    Choice,
    CohortView,
    Explanation,
    LaneOutcome,
    LaneView,
    Option,
    Policy,
    RoundOutcome,
    prepared_widths,
)
from flare.runtime.policy.costs import RoundCosts, Shape
from flare.runtime.policy.exploration import Exploration
from flare.runtime.policy.fixed import Fixed, fixed
from flare.runtime.policy.survival import Prior, Survival

__all__ = [
    "Adaptive",
    "Choice",
    "CohortView",
    "Explanation",
    "Exploration",
    "Fixed",
    "LaneOutcome",
    "LaneView",
    "Option",
    "Policy",
    "Prior",
    "RoundCosts",
    "RoundOutcome",
    "Shape",
    "Survival",
    "adaptive",
    "fixed",
    "prepared_widths",
]
