"""A matcher: where a text stands in what it must follow. The one thing a grammar library has to provide."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MaskRow = NDArray[np.int32]
"""One token mask: bit t % 32 of word t // 32 is set where token t is allowed."""


class Matcher(Protocol):
    """The state after some text tokens. Ids that end a response are no text: a matcher never consumes them."""

    @property
    def fault(self) -> str | None:
        """Why this state cannot go on (a resource limit, say); None while it can."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text so far is whole."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether the text so far is whole and no token may follow it."""
        ...

    def copy(self) -> "Matcher":
        """An independent matcher in the same state."""
        ...

    def legal(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first, may follow; changes nothing."""
        ...

    def consume(self, tokens: Sequence[int]) -> None:
        """Move over tokens that `legal` accepted."""
        ...

    def forced(self) -> list[int]:
        """Tokens that spell the only possible continuation, as far as there is one; often none."""
        ...

    def allow(self, row: MaskRow) -> None:
        """Overwrite the row with the text tokens that may follow; all zeros where none may."""
        ...
