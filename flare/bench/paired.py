"""Arms against plain decoding: every turn by every arm, interleaved, in alternating order.

Within a block (one turn, one repeat) plain decoding runs first, after every few arms, and last, so that each arm has a
plain run close to it in time; the arms' order turns round from block to block. A run that fails stays in the list.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from time import perf_counter
from typing import Any

from flare.bench.arms import Arm, ArmDevice, Bench
from flare.bench.entries import Entry, Turn
from flare.bench.statistics import percentile, repeated_share
from flare.errors import FlareError
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling

ARMS_BETWEEN_PLAIN = 3
WARM_UP_TOKENS = 24
Note = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """One sampling law that all arms share: its name, and the temperature where it is not the recipe's."""

    name: str
    temperature: float | None = None


RECIPE, GREEDY = Setting("recipe sampling"), Setting("temperature 0", 0.0)


@dataclass(frozen=True)
class Observation:
    """One answer of one arm.

    Attributes:
        block, place: which turn and repeat, and when in it; plain runs of a block are what its arms are paired with.
        seconds: first to last token; tokens_per_s: of the tokens after the first; tpot_ms: the inverse.
        gap_p99_ms: 99th percentile of the time between text events, which carry several tokens each.
        rounds: [width, offered, accepted, emitted, seconds] of each.
        sources: [offered, accepted] by source; depths: the same by depth.
        repeated: share of repeated 8-grams in the answer.
        error: why it failed; its other fields are then empty.
    """

    setting: str
    category: str
    entry: str
    turn: int
    arm: str
    width: str
    copies: str
    block: int
    place: int
    seed: int
    prompt_tokens: int
    tokens: int = 0
    ttft_s: float = 0.0
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    tpot_ms: float = 0.0
    gap_p99_ms: float = 0.0
    finish: str = ""
    rounds: tuple[tuple[int, int, int, int, float], ...] = ()
    sources: dict[str, tuple[int, int]] | None = None
    depths: tuple[tuple[int, int], ...] = ()
    repeated: float = 0.0
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For `result.json`."""
        return asdict(self)


@dataclass(frozen=True)
class Session:
    """What is measured: arms in their order, conversations, laws, repeats; `cap_tokens` bounds every budget."""

    bench: Bench
    plain: Arm
    arms: Sequence[Arm]
    entries: Sequence[Entry]
    settings: Sequence[Setting]
    repeats: int
    cap_tokens: int | None


def measure(session: Session, note: Note) -> list[Observation]:
    """All observations, in the order they were made; `note` is told of each block."""
    warm_up(session)
    observations: list[Observation] = []
    blocks = count()
    for setting in session.settings:
        for repeat in range(session.repeats):
            for entry in session.entries:
                for index in entry.measured():
                    block = next(blocks)
                    note(f"{setting.name}, repeat {repeat + 1} of {session.repeats}: {entry.id}, turn {index + 1}")
                    for place, arm in enumerate(order(session.plain, session.arms, reverse=bool(block % 2))):
                        place_in = Place(setting, entry, index, block, place, seed=1000 + repeat)
                        observations.append(observe(session, arm, place_in))
    return observations


@dataclass(frozen=True)
class Place:
    """Where one observation belongs."""

    setting: Setting
    entry: Entry
    index: int
    block: int
    place: int
    seed: int

    @property
    def turn(self) -> Turn:
        return self.entry.turns[self.index]


def order(plain: Arm, arms: Sequence[Arm], reverse: bool) -> Iterator[Arm]:
    """Plain, a few arms, plain, … and plain at the end; reversed in every other block."""
    turned = list(reversed(arms)) if reverse else list(arms)
    for begin in range(0, len(turned), ARMS_BETWEEN_PLAIN):
        yield plain
        yield from turned[begin : begin + ARMS_BETWEEN_PLAIN]
    yield plain


def warm_up(session: Session) -> None:
    """Each arm answers once, unmeasured, the last turn of the conversation with the most: what copies can help with."""
    entry = max(session.entries, key=lambda entry: len(entry.turns))
    index = len(entry.turns) - 1
    budget = min(WARM_UP_TOKENS, session.cap_tokens or WARM_UP_TOKENS)
    for arm in (session.plain, *session.arms):
        engine, _ = session.bench.open(arm, entry.remembered(index))
        with engine, suppress(FlareError):  # what is refused here is refused, and told, where it is measured
            engine.generate(list(entry.turns[index].prompt_ids), Sampling(max_tokens=budget, ignore_eos=True))


def observe(session: Session, arm: Arm, place: Place) -> Observation:
    """One answer of one arm in a fresh engine; a refusal becomes an observation with its sentence."""
    turn = place.turn
    budget = min(turn.budget_tokens, session.cap_tokens or turn.budget_tokens)
    sampling = Sampling(temperature=place.setting.temperature, seed=place.seed, max_tokens=budget, ignore_eos=True)
    known: dict[str, Any] = {
        "setting": place.setting.name,
        "category": place.entry.category,
        "entry": place.entry.id,
        "turn": place.index + 1,
        "arm": arm.name,
        "width": arm.width,
        "copies": arm.copies,
        "block": place.block,
        "place": place.place,
        "seed": place.seed,
        "prompt_tokens": len(turn.prompt_ids),
    }
    engine, device = session.bench.open(arm, place.entry.remembered(place.index))
    gaps: list[float] = []
    done: Completion | None = None
    with engine:
        try:
            last = perf_counter()
            for event in engine.stream(list(turn.prompt_ids), sampling):
                gaps.append(perf_counter() - last)
                last = perf_counter()
                done = event.completion or done
        except FlareError as error:
            return Observation(**known, error=str(error))
    assert done is not None
    return Observation(**known, **_facts(done, device, gaps[1:]))


def _facts(done: Completion, device: ArmDevice, gaps: list[float]) -> dict[str, Any]:
    speculation, timing = done.speculation, done.timing
    kinds = {graph.id: graph.kind for graph in device.manifest.graphs}
    seconds = [replay.seconds for replay in device.replays if kinds[replay.graph] in ("decode", "speculative")]
    rounds = zip(done.rounds, seconds, strict=True)
    return {
        "tokens": len(done.token_ids),
        "ttft_s": timing.ttft_s,
        "seconds": timing.decode_s,
        "tokens_per_s": timing.tokens_per_s,
        "tpot_ms": 1e3 / timing.tokens_per_s if timing.tokens_per_s else 0.0,
        "gap_p99_ms": 1e3 * percentile(gaps, 0.99) if gaps else 0.0,
        "finish": done.finish_reason,
        "rounds": tuple((row.width, row.offered, row.accepted, row.emitted, spent) for row, spent in rounds),
        "sources": {source: tuple(counts) for source, counts in speculation.by_source.items()},
        "depths": tuple(tuple(counts) for counts in speculation.by_depth),
        "repeated": repeated_share(done.token_ids),
    }
