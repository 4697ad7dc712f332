"""Operators: what layers and rounds compute with, bound to one kind of device.

Every operator has a card (its room's `__init__`) with axes, inputs, outputs and formula, a torch reference, and one
implementation per device behind the same signature. Shapes are static; lengths, tables and counts are tensors, so that
a graph of the CUDA twins can be captured. R = B × W rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flare.ops.gated_delta import DeltaOperators
from flare.ops.linear import PackedLinear
from flare.ops.moe import Experts, Routing
from flare.ops.ngram import NgramHash, NgramTable
from flare.ops.projection import Norm, Places
from flare.ops.requests import RequestOperators
from flare.ops.sampling import DraftLaw, LawRows, PolicyTable
from flare.ops.sparse_attention import SparseOperators


class Linear(Protocol):
    """x [R, K] and a packed weight [N, K] → [R, N]; card: `ops/linear`."""

    def __call__(self, x: Tensor, packed: PackedLinear, *, out: Tensor | None = None) -> Tensor: ...


class RmsNorm(Protocol):
    """x [R, H], weight [H] → [R, H]; card: `ops/norm`."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class AddRmsNorm(Protocol):
    """residual [R, H] += x in place, then its norm [R, H]; card: `ops/norm`."""

    def __call__(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class ZeroCentredNorm(Protocol):
    """x [R, H], weight [H] → [R, H], each of `groups` runs of neighbours normed alone; card: `ops/norm`."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor: ...


class RotaryTable(Protocol):
    """Positions, head width, base, dtype → opaque table, on the host at load; card: `ops/rotary`."""

    def __call__(self, positions: int, dim: int, base: float, dtype: torch.dtype) -> Tensor: ...


class ApplyRotary(Protocol):
    """q [R, Hq, D], k [R, Hk, D] turned by the rows `rotary_rows` took once for the round; card: `ops/rotary`."""

    def __call__(self, q: Tensor, k: Tensor, cosines: Tensor, signed_sines: Tensor) -> tuple[Tensor, Tensor]: ...


class WritePages(Protocol):
    """k, v [R, Hk, D] to flat token indices [R] of the pages; card: `ops/attention`."""

    def __call__(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, index: Tensor) -> None: ...


class PagedAttention(Protocol):
    """q [B, W, Hq, D] over each lane's pages, causal after its committed length; card: `ops/attention`."""

    def __call__(
        self,
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        page_tables: Tensor,
        lengths: Tensor,
        counts: Tensor,
        scale: float,
    ) -> Tensor: ...


class ProjectHeads(Protocol):
    """x [R, H] normed, projected and turned: q [R, Hq, D]; keys and values go to pages; card: `ops/projection`."""

    def __call__(
        self, x: Tensor, norm: Norm, packed: PackedLinear, rotary: tuple[Tensor, Tensor], places: Places
    ) -> Tensor: ...


class TargetLaw(Protocol):
    """Logits [B, W, V] → law [B, W, V + 1] into `out`; card: `ops/sampling/law.py`."""

    def __call__(self, logits: Tensor, rows: LawRows, policy: PolicyTable, *, out: Tensor) -> Tensor: ...


class ChainVerify(Protocol):
    """Laws and drafts [B, D] → emitted tokens [B, D + 1] and accepted [B]; card: `ops/sampling/chain.py`."""

    def __call__(
        self, p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class ReportLogprobs(Protocol):
    """Log-probabilities of emitted tokens and the likeliest alternatives, written in place; card: `ops/logprobs`."""

    def __call__(
        self, logits: Tensor, tokens: Tensor, kept: Tensor, wanted: Tensor, slots: Tensor, values: Tensor, ids: Tensor
    ) -> None: ...


class CopyRows(Protocol):
    """Rows source [B] → target [B] of several tables, in place, for chosen [B] lanes alone; card: `ops/slots`."""

    def __call__(
        self, tables: Sequence[tuple[Tensor, Tensor]], source: Tensor, target: Tensor, chosen: Tensor
    ) -> None: ...


@dataclass(frozen=True)
class Operators:
    """The operator set of one kind of device; the types say shapes, the cards the rest.

    Attributes:
        pack_linear: weight [N, K] and format "dense" or "int4" → packed, on the host at load; PlanError if refused.
        rotary_rows: table and positions [R] → the two row tensors `apply_rotary` takes, once a round.
        norm_gate: x [R, H], norm, packed [2F, H] → [R, F]; add_linear: residual [R, N] += x [R, K] · Wᵀ in place. Card:
            `ops/projection`.
        silu_mul: gate_up [R, 2F] → [R, F].
        embed: table [V, H], tokens [R] → [R, H].
        scaled_silu: x [R, K], divisor → [R, K]; mix_streams: normed, gate [R, S · H], S → [R, H]; inject_streams:
            residual [R, S · H], y [R, H], injection [R, S] → [R, S · H]. Card: `ops/hyperconnection`.
        route: logits [R, E], k → routing; experts: x [R, H], routing, stacked weights → [R, H]; add_gated: routed,
            shared [R, H], gate [R, 1] → [R, H]. Card: `ops/moe`.
        ngram_rows: ids [B, N − 1 + W], hash → table rows [R, T]; ngram_lookup: table, rows, dtype → [R, T · E];
            gate_streams: key, query [R, S · H], value [R, H] → [R, S · H]; dilated_conv: gated [B, W, D], window
            [B, (K − 1) · d + W, D], weight [D, K], d → [B, W, D]. Card: `ops/ngram`.
        sparse: the family of `ops/sparse_attention`.
        requests: the family of `ops/requests`.
        delta: the family of `ops/gated_delta` and `ops/short_conv`.
    """

    pack_linear: Callable[[Tensor, str], PackedLinear]
    linear: Linear
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rotary_table: RotaryTable
    rotary_rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    apply_rotary: ApplyRotary
    write_pages: WritePages
    paged_attention: PagedAttention
    project_heads: ProjectHeads
    norm_gate: Callable[[Tensor, Norm, PackedLinear], Tensor]
    add_linear: Callable[[Tensor, Tensor, PackedLinear], None]
    silu_mul: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor, Tensor], Tensor]
    zero_centred_norm: ZeroCentredNorm
    scaled_silu: Callable[[Tensor, float], Tensor]
    mix_streams: Callable[[Tensor, Tensor, int], Tensor]
    inject_streams: Callable[[Tensor, Tensor, Tensor], Tensor]
    route: Callable[[Tensor, int], Routing]
    experts: Callable[[Tensor, Routing, Experts], Tensor]
    add_gated: Callable[[Tensor, Tensor, Tensor], Tensor]
    ngram_rows: Callable[[Tensor, NgramHash], Tensor]
    ngram_lookup: Callable[[NgramTable, Tensor, torch.dtype], Tensor]
    gate_streams: Callable[[Tensor, Tensor, Tensor], Tensor]
    dilated_conv: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    sparse: SparseOperators
    target_law: TargetLaw
    chain_verify: ChainVerify
    report_logprobs: ReportLogprobs
    copy_rows: CopyRows
    delta: DeltaOperators
    requests: RequestOperators
