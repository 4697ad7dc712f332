"""LaneRows and Boundary: which rows of a round an operator on recurrent state works on."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LaneRows:
    """The first rows of each lane, after its committed state: the active ones to compute, the published ones to commit.

    Attributes:
        slots: [B] int64 request slots; dead lanes name the null slot.
        lengths: [B] int64 tokens committed before; at 0 the slot's state counts as zero, whatever it holds.
        counts: [B] int64 rows; 0 leaves the lane's state untouched.
    """

    slots: Tensor
    lengths: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Boundary:
    """A second slot that receives a lane's state after fewer rows than a commit publishes.

    Attributes:
        counts: [B] int64 rows after which the state is also written; a lane writes where 1 ≤ counts ≤ published rows.
        slots: [B] int64 receiving slots; where one is the lane's own, the final state wins.
    """

    counts: Tensor
    slots: Tensor
