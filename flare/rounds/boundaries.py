"""Page boundaries: the state at a multiple of 64 that a round crosses, written to a snapshot row while it commits.

Shapes: B lanes, W ≤ 64 rows per lane, R = B × W.
"""

from torch import Tensor

from flare.contract.frames import Arguments
from flare.contract.manifest import PAGE_TOKENS
from flare.layers.rows import Hidden, Rows
from flare.ops.requests import Crossing, Lanes
from flare.rounds.model import Model


def find_crossing(model: Model, rows: Rows, emitted: Tensor, arguments: Arguments[Tensor]) -> Crossing | None:
    """The multiple P of 64 with N < P ≤ N + t, t = `emitted` [B]: a round of at most 64 rows reaches one or none.

    None in a core without snapshots.
    """
    lanes, width = rows.tokens.shape
    assert width <= PAGE_TOKENS, f"a round of {width} rows may cross more than one page boundary"
    if model.extent.snapshots == 0:
        return None
    named = arguments.boundary_slots[:lanes]
    return model.ops.requests.find_crossing(rows.lengths, emitted, named, model.extent.null_slot, width)


def keep_crossing(model: Model, rows: Rows, verified: Hidden, crossing: Crossing | None) -> None:
    """Complete the snapshot rows that the layers wrote in their commit: rings, and what the target said of row P − 1.

    A ring holds every entry below P that anything at P may read, whatever the round wrote after it: its length leaves
    room for an open group before the widest round.
    """
    if crossing is None:
        return
    requests, written = model.requests, crossing.boundary.slots
    model.ops.copy_rows(model.prefix.rings, rows.slots, written, crossing.chosen)
    tails = ((verified.feedback, requests.feedback), (verified.output, requests.output))
    model.ops.copy_rows(tails, crossing.last, written, crossing.chosen)


def keep_end(model: Model, lanes: Lanes, arguments: Arguments[Tensor]) -> None:
    """Copy the state the lanes are left with to the snapshot rows they name."""
    row = arguments.boundary_slots[: len(lanes.slots)]
    model.ops.copy_rows(model.prefix.rows, lanes.slots, row, lanes.live & (row > model.extent.null_slot))
