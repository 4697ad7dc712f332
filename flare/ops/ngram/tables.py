"""What n-gram embeddings read: the hash of each head, and a table in one of three stored formats."""

from dataclasses import dataclass

from torch import Tensor

from flare.ops.formats.fp8 import Fp8
from flare.ops.formats.nvfp4 import Nvfp4


@dataclass(frozen=True)
class NgramHash:
    """The heads' hash functions.

    Attributes:
        multipliers: [N] int64, one per lag, lag 0 (the row's own token) first.
        sizes: [T] int64, the prime number of rows of each head; order 2 first.
        offsets: [T] int64, each head's first row in the common table.
        eos: the token that cuts an n-gram.
    """

    multipliers: Tensor
    sizes: Tensor
    offsets: Tensor
    eos: int


@dataclass(frozen=True)
class NgramTable:
    """rows: the table [rows, E]: plain in the model's dtype, or FP8, or NVFP4 with one `scale_2` [1] for all."""

    rows: Tensor | Fp8 | Nvfp4
