"""What one request reads from the prefix index and leaves in it."""

from dataclasses import dataclass

from flare.runtime.memory.prefix import Hit
from flare.runtime.memory.radix import NONE, Endpoint, Node


@dataclass(slots=True)
class Trail:
    """A request's dealings with the prefix index; a parked request begins a new one.

    Attributes:
        hit: where it begins from, with references to the row and to the copied page until the restore is over;
            restoring: that is queued.
        branch: tokens it has in common with cached prefixes beyond the hit; a chunk ends there, for others to begin at.
        node: the last whole page it published.
        row: a snapshot reserved for the next page boundary, `boundary` tokens long; crossed: it was written.
        last_row: a snapshot reserved for the end of a finished request.
        newest: the last boundary it published while decoding; chunk_end: the last end of a chunk inside its prompt.
    """

    hit: Hit | None = None
    restoring: bool = False
    branch: int = 0
    node: Node | None = None
    row: int = NONE
    boundary: int = 0
    crossed: bool = False
    last_row: int = NONE
    newest: Endpoint | None = None
    chunk_end: Endpoint | None = None
