"""Settings: what a round costs, how often drafts are accepted and how many requests there are — drawn from a seed."""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from flare.contract.frames import Source

BATCHES = (1, 2, 4)
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
DEPTH = WIDTHS[-1] - 1
SPAN_TOKENS = 64

Curve = Literal["flat", "linear", "band", "steep"]
Drafts = Literal["learned", "copies", "hopeless", "uneven"]
Change = Literal["stationary", "acceptance", "load"]

CURVES: tuple[Curve, ...] = ("flat", "linear", "band", "steep")
DRAFTS: tuple[Drafts, ...] = ("learned", "copies", "hopeless", "uneven")
CHANGES: tuple[Change, ...] = ("stationary", "acceptance", "load")


@dataclass(frozen=True)
class Setting:
    """One world for a policy.

    Attributes:
        curve: how cost grows with rows B × W: launch-bound ("flat"), by the row ("linear", "steep"), or with a jump
            where other kernels take over ("band").
        plain_seconds: a round of one row; slope: of that, per further row; jump: added above `band_rows`.
        drafts: "learned" accepts each depth with a chance of its own; "copies" has long runs and stretches with no
            draft; "hopeless" is hardly ever right; "uneven" mixes requests of very different luck.
        acceptance: base chance; decay: factor per depth.
        change: what alternates every `period_tokens`: the acceptance, the number of requests, or nothing.
        lanes: requests at once (where the load changes: in busy times).
    """

    seed: int
    curve: Curve
    plain_seconds: float
    slope: float
    jump: float
    band_rows: int
    drafts: Drafts
    acceptance: float
    decay: float
    change: Change
    period_tokens: int
    lanes: int

    @property
    def name(self) -> str:
        return f"{self.curve}/{self.drafts}/{self.change}/{self.lanes}"

    @property
    def source(self) -> Source:
        return Source.HISTORY if self.drafts == "copies" else Source.LEARNED

    def seconds(self, batch: int, width: int) -> float:
        """What a round of this shape really takes, without noise."""
        rows = batch * width
        return self.plain_seconds * (1 + self.slope * (rows - 1) + (self.jump if rows > self.band_rows else 0.0))

    def phase(self, emitted_tokens: int) -> int:
        """0 or 1: which of the two alternating times it is; always 0 where nothing changes."""
        return 0 if self.change == "stationary" else emitted_tokens // self.period_tokens % 2

    def lanes_at(self, emitted_tokens: int) -> int:
        """Requests at once after so many tokens in all."""
        quiet = self.change == "load" and self.phase(emitted_tokens)
        return 1 if quiet else self.lanes

    def chances(self, request: int, position: int, emitted_tokens: int) -> tuple[float, ...]:
        """Chance of each depth's draft after so many tokens of a request; empty where there is no draft."""
        chance = self.acceptance
        if self.drafts == "hopeless":
            chance = 0.05
        elif self.drafts == "uneven":
            chance = 0.95 if lucky(self.seed, request) else 0.15
        if self.change == "acceptance" and self.phase(emitted_tokens):
            chance *= 0.2
        if self.drafts == "copies":
            left = run_left(self.seed, request, position)
            return tuple(chance if depth < left else 0.02 for depth in range(DEPTH)) if left else ()
        return tuple(chance * self.decay**depth for depth in range(DEPTH))


def settings(count: int, seed: int) -> list[Setting]:
    """`count` settings that cover every curve, kind of drafts and change in turn; the rest is drawn."""
    return [_setting(index, seed) for index in range(count)]


def _setting(index: int, seed: int) -> Setting:
    draw = random.Random(f"{seed} setting {index}")
    curve = CURVES[index % len(CURVES)]
    slope = {"flat": (0.002, 0.01), "linear": (0.02, 0.08), "band": (0.005, 0.02), "steep": (0.2, 0.6)}[curve]
    return Setting(
        seed=seed * 1000 + index,
        curve=curve,
        plain_seconds=draw.uniform(0.001, 0.03),
        slope=draw.uniform(*slope),
        jump=draw.uniform(0.3, 1.2) if curve == "band" else 0.0,
        band_rows=draw.choice((4, 8, 16)),
        drafts=DRAFTS[(index // len(CURVES) + index) % len(DRAFTS)],
        acceptance=draw.uniform(0.5, 0.95),
        decay=draw.uniform(0.85, 1.0),
        change=(change := CHANGES[index % len(CHANGES)]),
        period_tokens=draw.choice((1500, 2500, 4000)),
        lanes=draw.choice(BATCHES[1:] if change == "load" else BATCHES),
    )


@lru_cache(maxsize=4096)
def lucky(seed: int, request: int) -> bool:
    """Whether a request of an uneven setting is one whose drafts are good."""
    return random.Random(f"{seed} luck {request}").random() < 0.5


def run_left(seed: int, request: int, position: int) -> int:
    """Tokens that can still be copied at a position: each span of text begins with a run."""
    return max(0, _run(seed, request, position // SPAN_TOKENS) - position % SPAN_TOKENS)


@lru_cache(maxsize=4096)
def _run(seed: int, request: int, span: int) -> int:
    return random.Random(f"{seed} run {request} {span}").choice((0, 0, 8, 24, 48))
