"""Scenarios: which core, which serving mode and how much trouble one seed stands for."""

from dataclasses import dataclass
from random import Random

from flare.bench.simulation.scripted import Sizes, Truth

BUDGETS = (1, 2, 3, 8, 20, 40, 64, 65, 90, 130, 130, 190)
LONG_BUDGETS = (1, 130, 190, 220)  # with short prompts beside them, requests grow into each other's pages

MODES: tuple[tuple[str, ...], ...] = (
    ("serving.mtp_draft_tokens=7", "serving.adaptive_verification=true"),
    ("serving.mtp_draft_tokens=7", "serving.fixed_width=4"),
    ("serving.mtp_draft_tokens=7", "serving.adaptive_verification=false"),
    ("serving.mtp_draft_tokens=0",),
)


@dataclass(frozen=True)
class Scenario:
    """One seed's world.

    Attributes:
        faults: cancellations, bursts, late completions and failed replays happen.
        queue: most requests that wait or run at a time.
        pool: prompts that are repeated and branched from; budgets: output tokens that are asked for.
    """

    seed: int
    sizes: Sizes
    truth: Truth
    overrides: tuple[str, ...]
    faults: bool
    queue: int = 12
    pool: int = 6
    budgets: tuple[int, ...] = BUDGETS


def scenario_of(seed: int, faults: bool) -> Scenario:
    """The scenario of a seed: modes and sizes vary with it, so that twenty seeds meet each combination."""
    draw = Random(f"scenario {seed}")
    learned = seed % 3 == 1
    paged = seed % 3 == 2
    sizes = Sizes(
        lanes=draw.choice((2, 4, 4)),
        slots=draw.choice((4, 5, 6)),
        pages=draw.choice((7, 9, 12, 40)),
        snapshots=0 if paged and draw.random() < 0.5 else draw.choice((2, 5, 16, 40)),
        rows=draw.choice((16, 32)),
        learned=learned,
        paged=paged,
    )
    mode = MODES[seed % len(MODES)]
    truth = Truth(seed, endings=draw.choice((1, 6)))
    budgets = draw.choice((BUDGETS, LONG_BUDGETS))
    return Scenario(seed, sizes, truth, mode, faults, pool=draw.choice((2, 6)), budgets=budgets)
