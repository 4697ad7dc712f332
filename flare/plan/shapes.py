"""Which shapes exist: batch capacities, speculative shapes, and the subset that serving selects."""

from collections.abc import Sequence
from typing import NamedTuple


class Shape(NamedTuple):
    """A round's rectangle: B requests of W rows each."""

    batch: int
    width: int

    @property
    def depth(self) -> int:
        """Drafts D of a chain."""
        return self.width - 1


def batch_capacities(concurrency: int) -> tuple[int, ...]:
    """Powers of two from one through the padded limit: 4 → 1, 2, 4; 5 → 1, 2, 4, 8."""
    capacities = [1]
    while capacities[-1] < concurrency:
        capacities.append(capacities[-1] * 2)
    return tuple(capacities)


def speculative_shapes(concurrency: int, widths: Sequence[int], token_capacity: int) -> tuple[Shape, ...]:
    """Width one at every batch capacity, each wider width where B × W fits the token capacity.

    Concurrency four and five drafts (widths 1..6) at 128 rows give eighteen.
    """
    return tuple(
        Shape(batch, width)
        for batch in batch_capacities(concurrency)
        for width in widths
        if width == 1 or batch * width <= token_capacity
    )


def selected_shapes(
    shapes: Sequence[Shape], concurrency: int, depth: int, fixed_width: int | None
) -> tuple[Shape, ...]:
    """The subset serving needs: fewer requests, fewer drafts, or one fixed width (one elsewhere).

    A fixed width of 4 at concurrency 4 keeps exactly three graphs: (1, 4), (2, 4), (4, 4).
    """
    batches = batch_capacities(concurrency)
    kept = [shape for shape in shapes if shape.batch in batches]
    if fixed_width is None:
        return tuple(shape for shape in kept if shape.depth <= depth)
    prepared = set(kept)
    return tuple(shape if (shape := Shape(batch, fixed_width)) in prepared else Shape(batch, 1) for batch in batches)
