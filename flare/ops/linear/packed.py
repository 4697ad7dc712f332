"""PackedLinear: one weight in the form its device's linear operator reads."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PackedLinear:
    """A weight [N, K] made ready once; only the operator set that packed it may read it.

    Attributes:
        rows, columns: N and K.
        linear_format: "dense" or "int4".
        payload: plain, library-blocked or 4-bit storage.
        scales: [K / 32, N, 2] scale and midpoint of each group, in the activations' dtype, for 4-bit storage only.
    """

    rows: int
    columns: int
    linear_format: str
    payload: Tensor
    scales: Tensor | None = None
