"""The Target contract: what the served model offers to rounds."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.layers.rows import Hidden, Rows
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.short_conv import Boundary
from flare.plan.declarations import Declarations


class Target(Protocol):
    """A model made of layers with prefill, verify and commit.

    For every lane and every emitted count t, `verify` followed by `commit(t)` leaves what t single-token steps leave;
    rows that are inactive or beyond t change nothing reachable.
    """

    @property
    def vocab(self) -> int:
        """Token ids are 0 … vocab − 1."""
        ...

    @property
    def feedback_width(self) -> int:
        """Width F of the feedback a drafter may absorb."""
        ...

    @property
    def output_width(self) -> int:
        """Width H of the output the head takes."""
        ...

    def declare(self) -> Declarations:
        """Weights and state, before any storage exists."""
        ...

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        """A reader from declared weight names to stored tensors.

        Raises:
            CheckpointError: the headers disagree with what was declared.
        """
        ...

    def bind(self, storage: Storage, ops: Operators) -> None:
        """Take the storage that was declared. Called once."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids [R] → embeddings [R, H]."""
        ...

    def head(self, output: Tensor) -> Tensor:
        """Outputs [R, H] → logits [R, V] in the model's dtype."""
        ...

    def prefill(self, rows: Rows) -> Hidden:
        """Run and commit the active rows of a prompt chunk; no `commit` follows."""
        ...

    def verify(self, rows: Rows) -> Hidden:
        """Run candidate rows, writing only private candidate storage."""
        ...

    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        """Publish exactly the first `emitted` [B] int64 rows of each lane.

        Args:
            boundary: rows of slot state that receive the state after fewer rows; rings are copied by the framework.
        """
        ...
