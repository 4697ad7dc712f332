"""Types of the requests family: what its operators take and return, and their signatures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flare.contract.frames import Arguments
from flare.ops.requests.rows import CausalRows, PageTables, Rows
from flare.ops.sampling import PolicyTable
from flare.ops.short_conv import Boundary


class Table(Protocol):
    """The request table: one row per slot, [S + 1, …], int64 but for feedback and output in the model's dtype.

    Attributes:
        recent: [S + 1, K] ids at position mod K, K a power of two.
        events: [S + 1, domains]; event_draws: draws one event of each domain takes; domain d begins at d << 60.
        round_domains: domains of whose events every round of a request spends one.
        feedback, output: [S + 1 + snapshots, F] and [S + 1 + snapshots, H].
    """

    null_slot: int
    event_draws: tuple[int, ...]
    round_domains: tuple[int, int]
    request_id: Tensor
    generation: Tensor
    consumed: Tensor
    generated: Tensor
    terminal: Tensor
    pending: Tensor
    seed: Tensor
    max_tokens: Tensor
    logprobs: Tensor
    events: Tensor
    recent: Tensor
    feedback: Tensor
    output: Tensor
    policy: PolicyTable


@dataclass(frozen=True)
class Lanes:
    """The requests of one round, and what the table says of them as it begins. [B] int64 unless said otherwise.

    Attributes:
        named: slots as the host named them; the record goes there.
        slots: dead and padded lanes replaced by the null slot; state goes there.
        live: [B] bool: generation matches and the request has not ended.
        pending: the sampled token not yet consumed: x[N]; consumed: N; recent: [B, K]; feedback: [B, F] h[N − 1].
        budget: tokens the lane may still emit; logprobs: alternatives to report, −1 for none, as in dead lanes.
        seeds: Philox keys; offsets: [domains, B] where this round's range of each domain begins.
    """

    named: Tensor
    slots: Tensor
    live: Tensor
    pending: Tensor
    consumed: Tensor
    recent: Tensor
    feedback: Tensor
    budget: Tensor
    logprobs: Tensor
    seeds: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class Offer:
    """What a round verifies: a proposal after copies took their places, cut to what is valid, as rows.

    Attributes:
        inputs: [B, W] int64: the pending token, the valid drafts, then the end marker.
        length: [B] int64 valid drafts c.
        point: [B, D] bool, valid drafts whose law is a point mass (every copy).
        sources: [B, D] int64 `Source`, meaningful below `length`.
        rows: the inputs as target rows, the first c + 1 of a live lane active.
    """

    inputs: Tensor
    length: Tensor
    point: Tensor
    sources: Tensor
    rows: Rows


@dataclass(frozen=True)
class Emission:
    """What a round adds to each request.

    Attributes:
        tokens: [B, W] int64 sampled tokens; kept: [B, W] bool, the emitted prefix.
        count: [B] int64 t; terminal: [B] int64 `Terminal` after them.
        accepted: [B] int64 drafts among the kept tokens.
    """

    tokens: Tensor
    kept: Tensor
    count: Tensor
    terminal: Tensor
    accepted: Tensor


@dataclass(frozen=True)
class Crossing:
    """Which lanes reach a page boundary in this round and have a snapshot row for it.

    Attributes:
        chosen: [B] bool.
        boundary: where the layers write the state at the boundary: rows after which, 0 for none, and snapshot rows.
        last: [B] int64 index into the B × W rows of row P − 1 (the lane's first where none is chosen).
    """

    chosen: Tensor
    boundary: Boundary
    last: Tensor


@dataclass(frozen=True)
class Move:
    """How far a commit moves the tails.

    Attributes:
        consumed: [B] int64 inputs consumed. Where any were, feedback and output of the last one are kept.
        output, feedback: [R, H] and [R, F] of all rows, the same number of them for every lane.
        spent: domains of which every live lane spends one event, whatever was accepted.
    """

    consumed: Tensor
    output: Tensor
    feedback: Tensor
    spent: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A finished round: what a record says that the table does not.

    Attributes:
        offered: [B] int64 drafts each lane offered; sources: [B, D] int64 where they came from.
        faults: [B] bool lanes whose target output was not finite.
        crossed: [B] bool lanes whose snapshot row was written; None where a graph crosses no boundary.
    """

    lanes: Lanes
    emission: Emission
    offered: Tensor
    sources: Tensor
    faults: Tensor
    crossed: Tensor | None = None


class OpenLanes(Protocol):
    """The first `count` lanes of a frame; with `ended`, those of ended requests that keep their slot count as live."""

    def __call__(self, table: Table, arguments: Arguments[Tensor], count: int, ended: bool = False) -> Lanes: ...


class MakeOffer(Protocol):
    """Proposed tokens [B, D] → offer; `learned`: whether they are drafts, else only copies can be offered."""

    def __call__(
        self,
        proposed: Tensor,
        learned: bool,
        lanes: Lanes,
        arguments: Arguments[Tensor],
        pages: PageTables,
        marker: int,
    ) -> Offer: ...


@dataclass(frozen=True)
class RequestOperators:
    """The family bound to one kind of device.

    Attributes:
        clip: table, lanes, tokens [B, W], accepted [B] → emission.
        find_crossing: lengths, emitted, boundary rows [B], null slot, W → crossing.
        commit: table, lanes, move, emission, in place.
        write_records: table, outcome, records, verification width, graph id, in place.
        find_faults: output [R, H], active [B, W], dtype → [B] bool.
    """

    open_lanes: OpenLanes
    make_offer: MakeOffer
    causal_rows: CausalRows
    clip: Callable[[Table, Lanes, Tensor, Tensor], Emission]
    find_crossing: Callable[[Tensor, Tensor, Tensor, int, int], Crossing]
    commit: Callable[[Table, Lanes, Move, Emission], None]
    find_faults: Callable[[Tensor, Tensor, torch.dtype], Tensor]
    write_records: Callable[[Table, Outcome, Tensor, int, int], None]
