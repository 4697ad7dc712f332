"""Kernels of a round's beginning: lanes read from frame and table, the offer with copies, rows placed in pages."""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from flare.contract.frames import COPY_TOKENS, Arguments, Source, Terminal
from flare.contract.manifest import PAGE_TOKENS
from flare.ops.requests.contract import Lanes, Offer, Table
from flare.ops.requests.rows import PageTables, Rows

LIVE = tl.constexpr(int(Terminal.LIVE))
_LEARNED = tl.constexpr(int(Source.LEARNED))
_PAGE = tl.constexpr(PAGE_TOKENS)
_COPY = tl.constexpr(COPY_TOKENS)
_COPIES = tl.constexpr(triton.next_power_of_2(COPY_TOKENS))


class Columns(NamedTuple):
    """The request table's columns and the row strides of its wide ones."""

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
    generated_counts: Tensor
    vocab: int
    feedback_row: int
    output_row: int
    null_slot: int


def columns(table: Table) -> Columns:
    """Gather the operands every kernel on the table takes."""
    counts = table.policy.generated_counts
    own = {name: getattr(table, name) for name in Columns._fields if name in Table.__annotations__}
    return Columns(
        **own,
        generated_counts=counts,
        vocab=counts.shape[1],
        feedback_row=table.feedback.stride(0),
        output_row=table.output.stride(0),
    )


class Opened(NamedTuple):
    """`Lanes`, field by field."""

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


class Copies(NamedTuple):
    """What a frame says of drafts."""

    ceilings: Tensor
    position: Tensor
    before: Tensor
    length: Tensor
    source: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, arguments: Arguments[Tensor]) -> "Copies":
        copied = (getattr(arguments, f"copy_{name}") for name in cls._fields[1:])
        return cls(arguments.ceilings, *copied)


class Lane(NamedTuple):
    """What an offer reads of its lanes, and the proposal with its strides."""

    live: Tensor
    pending: Tensor
    consumed: Tensor
    recent: Tensor
    budget: Tensor
    proposed: Tensor
    proposed_lane: int
    proposed_draft: int

    @classmethod
    def of(cls, lanes: Lanes, proposed: Tensor) -> "Lane":
        return cls(*(getattr(lanes, name) for name in cls._fields[:5]), proposed, *proposed.stride())


class Offered(NamedTuple):
    """An `Offer` less its rows."""

    inputs: Tensor
    length: Tensor
    point: Tensor
    sources: Tensor

    @classmethod
    def of(cls, offer: Offer) -> "Offered":
        return cls(offer.inputs, offer.length, offer.point, offer.sources)


class Placed(NamedTuple):
    """What is computed of `Rows`."""

    tokens: Tensor
    positions: Tensor
    active: Tensor
    counts: Tensor
    write_index: Tensor

    @classmethod
    def of(cls, rows: Rows) -> "Placed":
        return cls(*(getattr(rows, name) for name in cls._fields))


class Pages(NamedTuple):
    """Page tables, their row stride, and the bounds of a request."""

    tables: Tensor
    lane: int
    null_page: int
    context: int

    @classmethod
    def of(cls, pages: PageTables) -> "Pages":
        return cls(pages.tables, pages.tables.stride(0), pages.null_page, pages.context)


@triton.jit
def open_lanes(
    table: Columns, generations_ptr, out: Opened, width, lanes,
    ENDED: tl.constexpr, RECENT: tl.constexpr, DRAWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One lane; the first program reads its numbers, the others copy a block of its feedback each."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    named = tl.load(out.named + b)
    live = (tl.load(table.generation + named) == tl.load(generations_ptr + b)) & (named != table.null_slot)
    if not ENDED:
        live = live & (tl.load(table.terminal + named) == LIVE)
    slot = tl.where(live, named, table.null_slot)
    if part > 0:
        column = (part - 1) * BLOCK + tl.arange(0, BLOCK)
        feedback = tl.load(table.feedback + slot * table.feedback_row + column, column < width)
        tl.store(out.feedback + b * width + column, feedback, column < width)
    else:
        tl.store(out.live + b, live)
        tl.store(out.slots + b, slot)
        tl.store(out.pending + b, tl.load(table.pending + slot))
        tl.store(out.consumed + b, tl.load(table.consumed + slot))
        tl.store(out.budget + b, tl.load(table.max_tokens + slot) - tl.load(table.generated + slot))
        tl.store(out.logprobs + b, tl.where(live, tl.load(table.logprobs + slot), -1))
        tl.store(out.seeds + b, tl.load(table.seed + slot))
        place = tl.arange(0, RECENT)
        tl.store(out.recent + b * RECENT + place, tl.load(table.recent + slot * RECENT + place))
        for domain in tl.static_range(len(DRAWS)):
            start = (slot * 0 + domain) << 60
            event = tl.load(table.events + slot * len(DRAWS) + domain)
            tl.store(out.offsets + domain * lanes + b, start + event * DRAWS[domain])


@triton.jit
def make_offer(
    frame: Copies, lane: Lane, out: Offered, rows: Placed, pages: Pages, marker,
    DEPTH: tl.constexpr, WIDTHS: tl.constexpr, LEARNED: tl.constexpr, RECENT: tl.constexpr,
):  # fmt: skip
    """One lane: what of its copy fits, how much of the offer is valid, and its rows. Row w holds draft w − 1."""
    b = tl.program_id(0).to(tl.int64)
    live, budget = tl.load(lane.live + b) != 0, tl.load(lane.budget + b)
    pending, consumed = tl.load(lane.pending + b), tl.load(lane.consumed + b)
    known, fresh = _fitting_copy(frame, lane, b, consumed, live, DEPTH, RECENT)

    w = tl.arange(0, WIDTHS)
    draft, drafted = w - 1, (w > 0) & (w <= DEPTH)
    place = tl.minimum(tl.maximum(known, 0) + draft, _COPY - 1)
    copied = tl.load(frame.tokens + b * _COPY + place, drafted, 0)
    proposed = tl.load(lane.proposed + b * lane.proposed_lane + draft * lane.proposed_draft, drafted, 0)
    point = drafted & (draft < fresh)
    count = fresh
    if LEARNED:
        departs = tl.max((point & (copied != proposed)).to(tl.int32), 0)
        count = tl.where(departs == 0, DEPTH, fresh)

    length = tl.minimum(tl.minimum(count, tl.load(frame.ceilings + b)), budget - 1)
    length = tl.where(live, tl.maximum(length, 0), 0)
    valid = draft < length
    token = tl.where(valid, tl.where(point, copied, proposed), marker)
    token = tl.where(w == 0, pending, token)
    tl.store(out.length + b, length)
    tl.store(out.inputs + b * (DEPTH + 1) + w, token, w <= DEPTH)
    tl.store(out.point + b * DEPTH + draft, point & valid, drafted)
    tl.store(out.sources + b * DEPTH + draft, tl.where(point, tl.load(frame.source + b), _LEARNED), drafted)

    active = tl.where(live, length + 1, 0)
    tl.store(rows.counts + b, active)
    _place(rows, pages, b, w, token, active, consumed, DEPTH + 1)


@triton.jit
def _fitting_copy(frame: Copies, lane: Lane, b, consumed, live, DEPTH: tl.constexpr, RECENT: tl.constexpr):
    """Tokens of a continuation that are committed or pending already, and how many drafts are left of it."""
    start, length = tl.load(frame.position + b), tl.load(frame.length + b)
    known, recent = consumed + 1 - start, lane.recent + b * RECENT
    c = tl.arange(0, _COPIES)
    compared = (c < _COPY) & (c < known)
    token = tl.load(frame.tokens + b * _COPY + c, compared, 0)
    committed = tl.load(recent + ((start + c) & (RECENT - 1)), compared, 0)
    differs = tl.max((token != committed).to(tl.int32), 0)
    before = tl.load(recent + ((start - 1) & (RECENT - 1)))
    fits = live & (differs == 0) & (before == tl.load(frame.before + b)) & (known >= 0) & (known < length)
    return known, tl.where(fits, tl.minimum(length - known, DEPTH), 0)


@triton.jit
def causal_rows(
    tokens_ptr, tokens_lane, tokens_row, counts_ptr, lengths_ptr, rows: Placed, pages: Pages, width, TILE: tl.constexpr
):
    """A tile of one lane's rows."""
    b, w = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = tl.load(tokens_ptr + b * tokens_lane + w * tokens_row, w < width, 0)
    _place(rows, pages, b, w, token, tl.load(counts_ptr + b), tl.load(lengths_ptr + b), width)


@triton.jit
def _place(rows: Placed, pages: Pages, b, w, token, count, length, width):
    """Rows w of lane b: tokens, positions and the places in pages they write to."""
    inside, active, row = w < width, w < count, b * width + w
    position = tl.minimum(length + w, pages.context - 1)
    page = tl.load(pages.tables + b * pages.lane + position // _PAGE, inside & active, 0).to(tl.int64)
    page = tl.where(active, page, pages.null_page)
    tl.store(rows.tokens + row, tl.where(active, token, 0), inside)
    tl.store(rows.positions + row, position, inside)
    tl.store(rows.active + row, active, inside)
    tl.store(rows.write_index + row, page * _PAGE + position % _PAGE, inside)
