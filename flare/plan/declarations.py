"""Declarations: the weights and state a model part owns, said before any storage exists.

The memory plan adds these up and the arena walks the same list to allocate, so planned and allocated bytes cannot
differ.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
}


def array_bytes(shape: Iterable[int], dtype: str) -> int:
    """Bytes of a dense array."""
    return prod(shape) * DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class Weight:
    """A parameter tensor.

    Attributes:
        linear: an [out, in] matrix that the device may store in a packed, opaque form.
        exact: never packed in a lossy format, whatever `preparation.linear_format` says.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    linear: bool = False
    exact: bool = False

    def packed_format(self, wished: str) -> str:
        """The format of a linear weight where `wished` is asked for."""
        return "dense" if self.exact else wished


@dataclass(frozen=True)
class SlotState:
    """State with one entry per request slot (`columns` entries where history must survive a rejected draft).

    Attributes:
        shape: of one entry; allocated as [slots + 1 (+ snapshots), columns?, *shape], the null slot at index `slots`.
        snapshot: part of a prefix's state, so that snapshot rows follow the null slot. False for what belongs to the
            request alone: its policy, counters and candidates.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    columns: int = 1
    snapshot: bool = True

    @property
    def entry(self) -> tuple[int, ...]:
        """Shape of what one slot owns."""
        return self.shape if self.columns == 1 else (self.columns, *self.shape)


@dataclass(frozen=True)
class PagedState:
    """State with one entry per token, kept in pages of 64; allocated as [pages + 1, 64, *shape], the null page last.

    Attributes:
        heads_outermost: `shape` begins with heads, and memory holds all pages of one head before the next head's. A run
            of consecutive pages is then one dense block per head: attention reads it 1.4 to 1.8 times faster.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    heads_outermost: bool = False


@dataclass(frozen=True)
class RingState:
    """The last tokens of a request, at slot = position mod length.

    Allocated as [slots + 1 + snapshots, length, *shape].

    The length is the smallest multiple of `group` that still holds an open group (group − 1 entries) before the widest
    round, so a rejected row never overwrites an entry that is still needed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int
    width: int = 8

    @property
    def length(self) -> int:
        """12 for groups of four and rounds of eight."""
        return -(-(self.group - 1 + self.width) // self.group) * self.group

    @property
    def entry(self) -> tuple[int, ...]:
        """Shape of what one slot owns."""
        return (self.length, *self.shape)


@dataclass(frozen=True)
class RoundBuffer:
    """A buffer one round writes and reads: logits, laws, feedback. Shared by all shapes, sized for the largest."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Scratch:
    """Bytes an operator needs while it runs; all scratch shares one arena, so the plan takes the largest."""

    name: str
    size_bytes: int


State = SlotState | PagedState | RingState | RoundBuffer | Scratch


@dataclass(frozen=True)
class Declarations:
    """Weights and state of one part; parts add up with `+`."""

    weights: tuple[Weight, ...] = ()
    state: tuple[State, ...] = ()

    def __add__(self, other: "Declarations") -> "Declarations":
        return Declarations(self.weights + other.weights, self.state + other.state)


def prefix_rows(state: Iterable[State]) -> tuple[SlotState | RingState, ...]:
    """The state of a prefix that is kept by slot: what a snapshot row holds a copy of."""
    return tuple(
        item for item in state if isinstance(item, RingState) or (isinstance(item, SlotState) and item.snapshot)
    )


def together(parts: Iterable[Declarations]) -> Declarations:
    """The declarations of several parts as one."""
    return sum(parts, Declarations())
