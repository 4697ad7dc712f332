"""Reference of `copy_rows`: one row of one table at a time."""

from collections.abc import Sequence

from torch import Tensor


def copy_rows(tables: Sequence[tuple[Tensor, Tensor]], source: Tensor, target: Tensor, chosen: Tensor) -> None:
    """See the card."""
    for taken, written in tables:
        for lane in range(len(chosen)):
            if chosen[lane]:
                written[int(target[lane])] = taken[int(source[lane])].clone()
