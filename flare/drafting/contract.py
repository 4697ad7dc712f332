"""The Drafter contract: declare, absorb, propose.

Shapes: B lanes, D depth, W rows per lane, V vocabulary, F feedback.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from flare.contract.manifest import DraftSource
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations


@dataclass(frozen=True)
class Tail:
    """What a request carries between rounds, one row per lane.

    Attributes:
        slots: [B] int64, the null slot for dead lanes; live: [B] bool.
        pending: [B] int64, the sampled token not yet consumed: x[N].
        feedback: [B, F] the target's feedback before it: h[N−1].
        consumed: [B] int64 N.
        recent: [B, 32] int64, the last 32 ids by position mod 32, the pending one included.
    """

    slots: Tensor
    live: Tensor
    pending: Tensor
    feedback: Tensor
    consumed: Tensor
    recent: Tensor


@dataclass(frozen=True)
class Pairs:
    """Committed, target-derived draft history: pair i joins h[i] with x[i+1] at position i.

    Attributes:
        tokens: [B, W] int64 x[i+1]; feedback: [B, W, F] h[i]; positions: [B, W] int64 i; active: [B, W] bool.
        slots: [B] int64.
    """

    tokens: Tensor
    feedback: Tensor
    positions: Tensor
    active: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Draws:
    """One Philox domain of each lane: keys [B] int64 and the offset [B] int64 where this round's range begins."""

    seeds: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class Proposal:
    """Drafts and the law each was drawn from.

    Attributes:
        tokens: [B, D] int64, always valid ids.
        probs: [B, D, V + 1] laws (column V, the end marker, is 0), or None where no draft was drawn from a law.
        confidence: [B, D] or None.
    """

    tokens: Tensor
    probs: Tensor | None = None
    confidence: Tensor | None = None


class Drafter(Protocol):
    """What proposes tokens for a target. The framework brings capture, verification, commit and scheduling."""

    @property
    def source(self) -> DraftSource:
        """What the manifest says of this drafter's graphs."""
        ...

    @property
    def max_depth(self) -> int:
        """Most drafts a round may offer."""
        ...

    @property
    def absorbs(self) -> bool:
        """Whether it keeps history that prefill and commit must feed."""
        ...

    def declare(self) -> Declarations:
        """Weights and state it owns."""
        ...

    def bind(self, storage: Storage, ops: Operators, target: Target) -> None:
        """Take declared storage, and the target for its embedding and head."""
        ...

    def absorb(self, pairs: Pairs) -> None:
        """Write committed history; proposal states are never kept."""
        ...

    def propose(self, tail: Tail, depth: int, draws: Draws) -> Proposal:
        """Draft `depth` tokens after the pending one. Depth 0 returns an empty proposal."""
        ...
