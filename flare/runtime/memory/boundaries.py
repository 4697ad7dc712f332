"""Page boundaries that a request crosses while it decodes: a row is reserved, written mid-round, then published.

A boundary comes into reach before it is crossed: its row is named by both queued rounds, and at most one of them
writes it. Published it is only when no frame names it any more.
"""

from flare.contract.manifest import PAGE_TOKENS
from flare.runtime.memory.memory import Memory
from flare.runtime.memory.radix import NONE
from flare.runtime.requests import Request


def boundary_row(memory: Memory, request: Request, width: int) -> int:
    """The row a round names for the boundary in reach, with a reference of its own; NONE where it needs none.

    Args:
        width: of the widest round.
    """
    trail, settled = request.trail, len(request.tokens) - 1
    if trail.row == NONE:
        boundary = (max(settled, request.prompt_tokens) // PAGE_TOKENS + 1) * PAGE_TOKENS
        if boundary > min(settled + request.queued.tokens + 2 * width, request.reserved_tokens - 1):
            return NONE
        trail.row, trail.boundary = memory.take_snapshot(), boundary
    if trail.row == NONE or trail.crossed or trail.boundary <= settled:
        return NONE
    memory.snapshots.share(trail.row)
    return trail.row


def note_crossing(request: Request, consumed: int) -> None:
    """A record says that the row was written: it counts if all its tokens were kept.

    Args:
        consumed: tokens after the round, as the device counts them.

    Raises:
        RuntimeError: the round had no row to write, or this is another boundary.
    """
    trail, boundary = request.trail, consumed // PAGE_TOKENS * PAGE_TOKENS
    if trail.row == NONE or trail.crossed or trail.boundary != boundary:
        raise RuntimeError(f"Request {request.id} reports a snapshot at {boundary}; the host expects {trail.boundary}.")
    trail.crossed = boundary < len(request.tokens)


def settle_boundary(memory: Memory, request: Request) -> None:
    """Publish the row once no frame names it, or give it back where the boundary was passed without it.

    Only the newest boundary of a request stays, and those that somebody else began from.
    """
    trail, row = request.trail, request.trail.row
    if row == NONE or memory.snapshots.references(row) > 1:
        return
    if trail.crossed:
        endpoint = memory.publish(request, trail.boundary, row)
        assert endpoint is not None
        assert memory.prefixes is not None
        if trail.newest is not None and trail.newest.hits == 0:
            memory.prefixes.drop(trail.newest)
        trail.newest = endpoint if endpoint.snapshot == row else None
    elif trail.boundary < len(request.tokens):
        memory.snapshots.release(row)
    else:
        return
    trail.row, trail.crossed = NONE, False
