"""The geometry of hashed n-gram embeddings: multipliers, head sizes and offsets, derived in integers.

Table sizes are consecutive primes, so that no two heads collide alike; multipliers are odd, seeded, and small enough
that a token id times one stays within int64. A checkpoint stores all three; `check_geometry` compares.

Source: b12x 1.5.1 `sequence/ple_hash/geometry.py`, equal to transformers 5.24 `qwen4_exp`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import isqrt

from flare.errors import CheckpointError

_GAMMA = 0x9E3779B97F4A7C15
_LAYER_STEP = 10007
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class NgramShape:
    """What the derivation starts from.

    Attributes:
        vocab: token ids are below it; order: longest n-gram; heads_per_order: tables of each order 2 … `order`.
        base: smallest table size considered; ordinal: rank of the layer among the layers that have a table.
        divisor: rows of the whole table are padded to a multiple of it.
        eos: the token that cuts an n-gram.
    """

    vocab: int
    order: int
    heads_per_order: int
    base: int
    divisor: int
    eos: int
    seed: int = 1234
    ordinal: int = 0

    @property
    def heads(self) -> int:
        return (self.order - 1) * self.heads_per_order


@dataclass(frozen=True)
class NgramGeometry:
    """multipliers by lag; sizes and offsets by head; `rows` of the whole table, padding included."""

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: int


def ngram_geometry(shape: NgramShape) -> NgramGeometry:
    """Derive everything a shape implies."""
    first = shape.ordinal * shape.heads
    sizes = tuple(islice(_primes_from(shape.base), first, first + shape.heads))
    offsets = tuple(sum(sizes[:head]) for head in range(shape.heads))
    half = max((((1 << 63) - 1) // shape.vocab) // 2, 1)
    seed = shape.seed + _LAYER_STEP * shape.ordinal
    multipliers = tuple(2 * (_splitmix64(seed + _GAMMA * (lag + 1)) % half) + 1 for lag in range(shape.order))
    return NgramGeometry(multipliers, sizes, offsets, -(-sum(sizes) // shape.divisor) * shape.divisor)


def check_geometry(derived: NgramGeometry, stored: Mapping[str, Sequence[int]]) -> None:
    """Compare a checkpoint's integers, by their stored names, with the derivation.

    Raises:
        CheckpointError: a name and the two values that differ first.
    """
    expected = {
        "layer_multipliers": derived.multipliers,
        "ngram_heads_vocab_sizes": derived.sizes,
        "ngram_heads_offsets": derived.offsets,
    }
    for name, values in stored.items():
        wanted = expected[name.rsplit(".", 1)[-1]]
        if tuple(values) != wanted:
            raise CheckpointError(
                f"{name} holds {list(values)}, but vocabulary, order, heads, base and seed of this recipe give "
                f"{list(wanted)}; the table would be read at the wrong rows"
            )


def _primes_from(smallest: int):
    return (number for number in count(max(smallest, 2)) if all(number % factor for factor in _factors(number)))


def _factors(number: int) -> range | tuple[int, ...]:
    """Candidates that divide a composite number: 2 alone, or every odd number up to its root."""
    return range(3, isqrt(number) + 1, 2) if number % 2 else (() if number == 2 else (2,))


def _splitmix64(value: int) -> int:
    """Steele, Lea and Flood 2014: one output of the generator whose state is `value`."""
    value = (value + _GAMMA) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)
