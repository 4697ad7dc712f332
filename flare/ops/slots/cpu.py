"""CPU row copies: the lanes are looked at once, then each chosen row is one copy."""

from collections.abc import Sequence

from torch import Tensor


def copy_rows(tables: Sequence[tuple[Tensor, Tensor]], source: Tensor, target: Tensor, chosen: Tensor) -> None:
    """See the card."""
    copies = [
        (taken, written)
        for taken, written, wanted in zip(source.tolist(), target.tolist(), chosen.tolist(), strict=True)
        if wanted
    ]
    for taken, written in copies:
        for rows_from, rows_to in tables:
            rows_to[written].copy_(rows_from[taken])
