"""From observations to rows: paired ratios, what was accepted, what a width costs; tables and plots show these."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from flare.bench.arms import PLAIN
from flare.bench.paired import RECIPE, Observation
from flare.bench.statistics import Estimate, bootstrap, looping

FIRST_TURN, LATER_TURNS = "code_editing, turn 1", "code_editing, later turns"
NOT_SLOWER, FASTER = 0.97, 1.5


@dataclass(frozen=True)
class Row:
    """One arm in one kind of turn, against plain decoding in the same block.

    Attributes:
        ratio: tokens per second over plain's, None where no pair is left.
        bar: the least ratio asked for, None where none is.
        looping, failed: pairs left out because an answer ran in circles, or had no answer.
        tpot_ms, gap_p99_ms: medians over the arm's answers.
    """

    setting: str
    kind: str
    arm: str
    width: str
    copies: str
    ratio: Estimate | None
    bar: float | None
    looping: int
    failed: int
    tokens_per_s: float
    tpot_ms: float
    gap_p99_ms: float
    emitted_per_round: float

    @property
    def holds(self) -> bool | None:
        """Whether the median reaches its bar; None where there is none."""
        return None if self.bar is None or self.ratio is None else self.ratio.median >= self.bar

    def to_json(self) -> dict[str, Any]:
        """For `result.json`."""
        ratio = None if self.ratio is None else self.ratio._asdict()
        return {**asdict(self), "ratio": ratio, "holds": self.holds}


def kind_of(observation: Observation) -> str:
    """The table row a turn belongs to: its category; code editing is split, since the ring is empty at first."""
    if observation.category != "code_editing":
        return observation.category
    return FIRST_TURN if observation.turn == 1 else LATER_TURNS


def bar_of(kind: str, own: Observation) -> float | None:
    """What the adaptive policy must reach with copies under recipe sampling; identical repeats meet no bar.

    A fixed width holds no graph of width one, so it pays for its width where nothing can be copied; it is shown for
    comparison.
    """
    copies = own.copies
    if own.width != "adaptive" or copies not in ("history", "both"):
        return None
    if own.setting != RECIPE.name or kind == "identical_repeat":
        return None
    if kind == LATER_TURNS or (kind == FIRST_TURN and copies == "both"):
        return FASTER
    return NOT_SLOWER


def ratio_rows(observations: Sequence[Observation]) -> list[Row]:
    """One row per law, kind of turn and arm, in the order of the observations."""
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for observation in observations:
        key = (observation.setting, kind_of(observation), observation.arm)
        groups.setdefault(key, []).append(observation)
    plain = [observation for observation in observations if observation.arm == PLAIN]
    kinds = dict.fromkeys((setting, kind) for setting, kind, _ in groups)
    arms = dict.fromkeys(arm for _, _, arm in groups if arm != PLAIN)
    ordered = [(*kind, arm) for kind in kinds for arm in (PLAIN, *arms)]
    return [_row(key, groups[key], plain) for key in ordered if key in groups]


def _row(key: tuple[str, str, str], group: list[Observation], plain: Sequence[Observation]) -> Row:
    setting, kind, arm = key
    pairs = [(own, nearest(own, plain)) for own in group]
    answered = [own for own in group if own.error is None]
    failed = [pair for pair in pairs if any(side.error is not None for side in pair)]
    circles = [pair for pair in pairs if pair not in failed and any(looping(side.repeated) for side in pair)]
    kept = [pair for pair in pairs if pair not in failed and pair not in circles]
    ratios = [own.tokens_per_s / other.tokens_per_s for own, other in kept if own is not other]
    rounds = [row for own in answered for row in own.rounds]
    return Row(
        setting=setting,
        kind=kind,
        arm=arm,
        width=group[0].width,
        copies=group[0].copies,
        ratio=bootstrap(ratios),
        bar=bar_of(kind, group[0]),
        looping=len(circles),
        failed=len(failed),
        tokens_per_s=_median(own.tokens_per_s for own in answered),
        tpot_ms=_median(own.tpot_ms for own in answered),
        gap_p99_ms=_median(own.gap_p99_ms for own in answered),
        emitted_per_round=sum(row[3] for row in rounds) / len(rounds) if rounds else 0.0,
    )


def nearest(own: Observation, plain: Iterable[Observation]) -> Observation:
    """The plain run of the same block that is closest in time, the earlier of two; another one for plain itself.

    Only where a block holds a single plain run is that run its own pair.
    """
    block = [other for other in plain if other.block == own.block]
    others = [other for other in block if other is not own] or block
    return min(others, key=lambda other: (abs(other.place - own.place), other.place))


def acceptance(observations: Sequence[Observation]) -> list[dict[str, Any]]:
    """Offered and accepted drafts per law, kind, arm: by source, and by depth with the share given all before."""
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for observation in observations:
        if observation.depths:
            groups.setdefault((observation.setting, kind_of(observation), observation.arm), []).append(observation)
    return [
        {
            "setting": setting,
            "kind": kind,
            "arm": arm,
            "sources": _summed(own.sources or {} for own in group),
            "depths": _by_depth(group),
        }
        for (setting, kind, arm), group in groups.items()
    ]


def _summed(counted: Iterable[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for counts in counted:
        for source, (offered, accepted) in counts.items():
            before = total.get(source, (0, 0))
            total[source] = (before[0] + offered, before[1] + accepted)
    return total


def _by_depth(group: Sequence[Observation]) -> list[dict[str, float]]:
    """Conditional acceptance: of the drafts at a depth whose predecessors were all accepted."""
    rounds = [row for own in group for row in own.rounds]
    found = []
    for depth in range(max(len(own.depths) for own in group)):
        offered = sum(row[1] > depth for row in rounds)
        reached = sum(row[1] > depth and row[2] >= depth for row in rounds)
        accepted = sum(row[2] > depth for row in rounds)
        share = accepted / reached if reached else 0.0
        found.append({"offered": offered, "reached": reached, "accepted": accepted, "share": share})
    return found


def width_costs(observations: Sequence[Observation]) -> list[dict[str, Any]]:
    """Measured rounds: each width's median cost over that of a plain round of the same block's plain runs."""
    plain: dict[int, list[float]] = {}
    for own in observations:
        if own.arm == PLAIN:
            plain.setdefault(own.block, []).extend(row[4] for row in own.rounds)
    ratios: dict[tuple[str, int], list[float]] = {}
    for own in observations:
        if own.arm == PLAIN or not plain.get(own.block):
            continue
        usual = median(plain[own.block])
        for width, *_, seconds in own.rounds:
            ratios.setdefault((own.setting, width), []).append(seconds / usual)
    rows = sorted(ratios.items())
    return [{"setting": key[0], "width": key[1], "ratio": _bounds(values)} for key, values in rows]


def _bounds(values: Sequence[float]) -> dict[str, float]:
    estimate = bootstrap(values)
    assert estimate is not None
    return estimate._asdict()


def _median(values: Iterable[float]) -> float:
    listed = list(values)
    return median(listed) if listed else 0.0
