"""Types of the sparse attention family: what its operators take, and their signatures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

GROUP_TOKENS = 4


@dataclass(frozen=True)
class Interval:
    """Consecutive candidate rows of each lane.

    Attributes:
        slots: [B] int64 request slots; lengths: [B] int64 positions N of the first rows; counts: [B] int64 active rows.
        page_tables: [B, pages_per_request] int32 or int64.
    """

    slots: Tensor
    lengths: Tensor
    counts: Tensor
    page_tables: Tensor


@dataclass(frozen=True)
class IndexStream:
    """Where index keys live, and how a group's key is normalised.

    Attributes:
        ring: [slots + 1, C, I] raw keys at position mod C; tags: [slots + 1, C] int64 their positions.
        pages: [pages + 1, P, I / 4] contiguous: a page of P tokens holds P / 4 keys of groups.
        norm: [I] zero-centred weight.
    """

    ring: Tensor
    tags: Tensor
    pages: Tensor
    norm: Tensor
    eps: float


class NormRotary(Protocol):
    """x [R, H, D], weight [D], rotary rows → [R, H, D]."""

    def __call__(self, x: Tensor, weight: Tensor, cosines: Tensor, signed_sines: Tensor, eps: float) -> Tensor: ...


class AbsorbKeys(Protocol):
    """raw [B, W, I] into the ring and, by whole groups, into the index pages → intact [B] bool."""

    def __call__(
        self, raw: Tensor, stream: IndexStream, interval: Interval, cosines: Tensor, signed_sines: Tensor
    ) -> Tensor: ...


class SelectPositions(Protocol):
    """q [B, W, M, I] and index pages → positions [B, W, budget + 3] int32."""

    def __call__(self, q: Tensor, pages: Tensor, interval: Interval, budget: int) -> Tensor: ...


class SparseAttend(Protocol):
    """q [B, W, Hq, D] over the selected positions [B, W, any] of each row → [B, W, Hq, D]."""

    def __call__(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, selection: Tensor, interval: Interval, scale: float
    ) -> Tensor: ...


class ReuseSelection(Protocol):
    """Recorded rows [A, S] at positions [A], seen again from later positions [B] → [B, S + tail] int32."""

    def __call__(
        self, recorded: Tensor, recorded_positions: Tensor, source: Tensor, positions: Tensor, tail: int
    ) -> Tensor: ...


@dataclass(frozen=True)
class SparseOperators:
    """The family bound to one kind of device; `sigmoid_gate`: x, gate → x · σ(gate)."""

    norm_rotary: NormRotary
    absorb_keys: AbsorbKeys
    select_positions: SelectPositions
    sparse_attend: SparseAttend
    reuse_selection: ReuseSelection
    sigmoid_gate: Callable[[Tensor, Tensor], Tensor]
