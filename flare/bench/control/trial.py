"""One policy in one setting: the rounds it runs until a number of tokens is out, in simulated time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from flare.bench.control.settings import BATCHES, DEPTH, Setting
from flare.runtime.policy import CohortView, LaneOutcome, LaneView, Policy, RoundOutcome

NOISE = 0.03  # standard deviation of a round's logarithmic time
HICCUP_CHANCE, HICCUP_FACTOR = 0.01, 3.0
MARK_TOKENS = 200
MASK = 2**64 - 1


@dataclass
class Trial:
    """What a policy did.

    Attributes:
        seconds: simulated time until the last token; phases: (tokens, seconds) of either phase of the setting.
        curve: (tokens, seconds) now and then, for plots; widths: rounds of each width.
    """

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    phases: list[tuple[int, float]] = field(default_factory=lambda: [(0, 0.0), (0, 0.0)])
    curve: list[tuple[int, float]] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(slots=True, eq=False)
class _Lane:
    request: int
    length: int
    position: int = 0


def trial(setting: Setting, policy: Policy, tokens: int) -> Trial:
    """Run rounds until `tokens` are emitted.

    The text and its agreeing drafts depend on the setting's seed, the request and the position alone, so every policy
    meets the same luck; times are noisy and independent of it.
    """
    done, ids, lanes = Trial(), count(1), list[_Lane]()
    noise = random.Random(f"{setting.seed} noise")
    while done.tokens < tokens:
        _arrive(setting, lanes, done.tokens, ids)
        serving = lanes[: setting.lanes_at(done.tokens)]
        chances = [setting.chances(lane.request, lane.position, done.tokens) for lane in serving]
        batch = min(size for size in BATCHES if size >= len(serving))
        views = tuple(
            LaneView(lane.request, len(chance), setting.source, min(DEPTH, lane.length - lane.position - 1))
            for lane, chance in zip(serving, chances, strict=True)
        )
        choice = policy.choose(CohortView(batch, views))
        outcomes = [
            _verify(setting, serving[lane], chances[lane], ceiling)
            for lane, ceiling in zip(choice.lanes, choice.ceilings, strict=True)
        ]
        batch = min(size for size in BATCHES if size >= len(choice.lanes))
        hiccup = HICCUP_FACTOR if noise.random() < HICCUP_CHANCE else 1.0
        seconds = setting.seconds(batch, choice.width) * noise.lognormvariate(0.0, NOISE) * hiccup
        policy.observe(RoundOutcome(batch, choice.width, seconds, tuple(outcomes)))
        emitted = sum(1 + outcome.accepted for outcome in outcomes)
        _account(done, setting.phase(done.tokens), choice.width, seconds, emitted)
        lanes = _take_turns(policy, lanes, [serving[lane] for lane in choice.lanes])
    return done


def _arrive(setting: Setting, lanes: list[_Lane], emitted: int, ids: "count[int]") -> None:
    """Keep as many requests as the load asks for; those a quiet time leaves out wait for their turn."""
    while len(lanes) < setting.lanes_at(emitted):
        request = next(ids)
        lanes.append(_Lane(request, random.Random(f"{setting.seed} length {request}").randint(64, 512)))


def _take_turns(policy: Policy, lanes: list[_Lane], served: list[_Lane]) -> list[_Lane]:
    """The lanes that go on, those just served last."""
    for lane in served:
        if lane.position >= lane.length:
            policy.forget(lane.request)
    waiting = [lane for lane in lanes if lane not in served]
    return waiting + [lane for lane in served if lane.position < lane.length]


def _verify(setting: Setting, lane: _Lane, chances: Sequence[float], ceiling: int) -> LaneOutcome:
    """Accept the drafts that agree with the text; the round's own token always comes on top."""
    accepted, offered = 0, min(ceiling, len(chances))
    while accepted < offered and _agreement(setting, lane, accepted) < chances[accepted]:
        accepted += 1
    lane.position += 1 + accepted
    return LaneOutcome(lane.request, setting.source, offered, accepted)


def _agreement(setting: Setting, lane: _Lane, depth: int) -> float:
    """The luck of the draft at a position of the text, in [0, 1): the finaliser of splitmix64 (Steele et al. 2014)."""
    z = (setting.seed * 0x9E3779B97F4A7C15 + lane.request * 0xD1342543DE82EF95 + lane.position + depth) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) / 2**64


def _account(done: Trial, phase: int, width: int, seconds: float, emitted: int) -> None:
    if done.tokens // MARK_TOKENS != (done.tokens + emitted) // MARK_TOKENS:
        done.curve.append((done.tokens + emitted, done.seconds + seconds))
    before = done.phases[phase]
    done.phases[phase] = (before[0] + emitted, before[1] + seconds)
    done.tokens += emitted
    done.seconds += seconds
    done.rounds += 1
    done.widths[width] = done.widths.get(width, 0) + 1
