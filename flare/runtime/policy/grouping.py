"""Grouping: whether the lanes of a cohort fare better in two rounds of their own widths than in one.

A wide round costs every lane its rows. Where a few lanes have good drafts and the others none, a narrow round for the
others and a wide one for the few can emit more per second than either width for all.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flare.runtime.policy.choice import Option, Widths, capacity_of

LEAST_DIFFERENCE = 1.0  # expected tokens between the best and the worst lane, below which no split is looked for
LEAST_GAIN = 0.03  # of the joint round's tokens: a smaller promise is within what costs are known to


class Split(NamedTuple):
    """Two groups of lanes, by index; one round each, together better than the joint round."""

    better: tuple[int, ...]
    worse: tuple[int, ...]


def split_of(
    emitted: Sequence[Sequence[float]], joint: Option, widths: Widths, costs: Callable[[int], dict[int, float]]
) -> Split | None:
    """The best split, or None where one round for all is as good.

    Two rounds beat the joint rate r exactly when Σ (E − r · c) over them is positive, E tokens in c seconds each
    (Dinkelbach's criterion for ratios, 1967).

    Args:
        emitted: per lane the expected emitted tokens by width, from 0 to the widest one.
        joint: the best option of one round for all lanes.
        costs: seconds of every width at a batch capacity.
    """
    order = sorted(range(len(emitted)), key=lambda lane: -emitted[lane][-1])
    if emitted[order[0]][-1] - emitted[order[-1]][-1] < LEAST_DIFFERENCE:
        return None
    rest = [sum(column) for column in zip(*emitted, strict=True)]
    better = [0.0] * len(rest)
    best_cut, best_surplus = 0, LEAST_GAIN * joint.emitted
    for cut, lane in enumerate(order[:-1], 1):
        better = [total + own for total, own in zip(better, emitted[lane], strict=True)]
        rest = [total - own for total, own in zip(rest, emitted[lane], strict=True)]
        surplus = _surplus(better, joint.rate, costs(capacity_of(widths, cut)))
        surplus += _surplus(rest, joint.rate, costs(capacity_of(widths, len(order) - cut)))
        if surplus > best_surplus:
            best_cut, best_surplus = cut, surplus
    return Split(tuple(sorted(order[:best_cut])), tuple(sorted(order[best_cut:]))) if best_cut else None


def _surplus(emitted: Sequence[float], rate: float, seconds: dict[int, float]) -> float:
    """Tokens beyond what the joint rate would have emitted in the same time, at the group's best width."""
    return max(emitted[width] - rate * cost for width, cost in seconds.items())
