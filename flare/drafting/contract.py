"""The Drafter contract: declare, absorb, propose.

Shapes: B lanes, D depth, W rows per lane, V vocabulary, F feedback.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.contract.manifest import DraftSource
from flare.layers.rows import PageTables, Rows
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
        pages: the lanes' page tables.
    """

    slots: Tensor
    live: Tensor
    pending: Tensor
    feedback: Tensor
    consumed: Tensor
    recent: Tensor
    pages: PageTables


@dataclass(frozen=True)
class Pairs:
    """Committed, target-derived draft history: pair i joins h[i] with x[i+1] at position i.

    Attributes:
        rows: the pairs as rows: `tokens` x[i+1], `positions` i, `lengths` the pairs held before, `counts` those to add.
        feedback: [B, W, F] h[i].
    """

    rows: Rows
    feedback: Tensor


class Draws(Protocol):
    """The proposal draws of one round: each step has its own, skipped ones are never used again."""

    def sample(self, logits: Tensor, step: int) -> Tensor:
        """Draw draft `step` of every lane [B] int64 from its logits [B, V], filtered like the request's own law."""
        ...

    def laws(self, depth: int) -> Tensor:
        """The laws the first `depth` drafts were drawn from [B, D, V + 1], valid until the round ends."""
        ...


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

    source: DraftSource
    """What the manifest says of this drafter's graphs; said by the class."""
    absorbs: bool
    """Whether it keeps history that prefill and commit must feed; said by the class."""
    max_depth: int
    """Most drafts a round may offer."""

    def declare(self) -> Declarations:
        """Weights and state it owns."""
        ...

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        """A reader from its declared weight names to stored tensors; raises CheckpointError like a target's."""
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
