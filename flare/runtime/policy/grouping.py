"""Grouping: whether the lanes of a cohort fare better in two rounds of their own widths than in one.

A wide round costs every lane its rows. Where a few lanes have good drafts and the others none, a narrow round for the
others and a wide one for the few can emit more per second than either width for all.
"""

from collections.abc import Callable, Sequence
from operator import add, sub
from typing import NamedTuple

from flare.runtime.policy.choice import Option

LEAST_DIFFERENCE = 1.0  # expected tokens between the best and the worst lane, below which no split is looked for
LEAST_GAIN = 0.03  # of the joint round's tokens: a smaller promise is within what costs are known to


class Split(NamedTuple):
    """Two groups of lanes, by index; one round each, together better than the joint round."""

    better: tuple[int, ...]
    worse: tuple[int, ...]


def split_of(
    emitted: Sequence[Sequence[float]], joint: Option, costs: Callable[[int], dict[int, float]]
) -> Split | None:
    """The best split, or None where one round for all is as good.

    Two rounds beat the joint rate r exactly when Σ (E − r · c) over them is positive, E tokens in c seconds each
    (Dinkelbach's criterion for ratios, 1967).

    Args:
        emitted: per lane the expected emitted tokens by width, from 0 to the widest one.
        joint: the best option of one round for all lanes.
        costs: seconds of every width of a round of so many lanes, never falling with the width.
    """
    most = [lane[-1] for lane in emitted]
    if max(most) - min(most) < LEAST_DIFFERENCE:
        return None
    order = sorted(range(len(most)), key=most.__getitem__, reverse=True)
    rest: Sequence[float] = list(map(sum, zip(*emitted, strict=True)))
    better: Sequence[float] = [0.0] * len(rest)
    rate, all_of_them = joint.rate, sum(most)
    best_cut, best_surplus = 0, LEAST_GAIN * joint.emitted
    for cut, lane in enumerate(order[:-1], 1):
        better, rest = list(map(add, better, emitted[lane])), list(map(sub, rest, emitted[lane]))
        first, second = costs(cut), costs(len(order) - cut)
        if all_of_them - rate * (first[1] + second[1]) <= best_surplus:
            continue  # not even if both emitted the most for the price of width one
        surplus = _surplus(better, rate, first) + _surplus(rest, rate, second)
        if surplus > best_surplus:
            best_cut, best_surplus = cut, surplus
    return Split(tuple(sorted(order[:best_cut])), tuple(sorted(order[best_cut:]))) if best_cut else None


def _surplus(emitted: Sequence[float], rate: float, seconds: dict[int, float]) -> float:
    """Tokens beyond what the joint rate would have emitted in the same time, at the group's best width."""
    return max([emitted[width] - rate * cost for width, cost in seconds.items()])
