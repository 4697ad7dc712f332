"""Copies: the drafter of a recipe whose drafts are anchored continuations the host found.

Every drafter's proposal may be replaced by a copy where that still fits (`ops/requests`); this one has nothing else.
"""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.contract.manifest import DraftSource
from flare.drafting.contract import Draws, Pairs, Proposal, Tail
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations


class Copies:
    """The drafter of a recipe without a learned one: it proposes nothing itself, copies fill the round."""

    class Config(BaseModel):
        """`recipe.drafter` of such a recipe."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        max_depth: int = Field(ge=1, le=7, description="Most copied tokens one round may offer.")

    source: DraftSource = "copy"
    absorbs: bool = False

    def __init__(self, config: Config, target: Target) -> None:  # noqa: ARG002  copies know nothing of the model
        self.max_depth = config.max_depth

    def declare(self) -> Declarations:
        return Declarations()

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        return checkpoint.read

    def bind(self, storage: Storage, ops: Operators, target: Target) -> None:
        """Nothing was declared, so there is nothing to take."""

    def absorb(self, pairs: Pairs) -> None:
        """Copies keep no history on the device."""

    def propose(self, tail: Tail, depth: int, draws: Draws) -> Proposal:  # noqa: ARG002  nothing is drawn
        return no_proposal(tail, depth)


def no_proposal(tail: Tail, depth: int) -> Proposal:
    """Tokens that only copies may replace: the pending one in every place, which is valid and takes no launch."""
    return Proposal(tail.pending[:, None].expand(-1, depth))
