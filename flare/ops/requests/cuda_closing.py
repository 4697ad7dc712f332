"""Kernels of a round's end: the emitted prefix, page boundaries, the table's next state, faults, and the record."""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from flare.contract.frames import RECORD_FIELDS, Field, Flag, Terminal
from flare.contract.manifest import PAGE_TOKENS
from flare.ops.requests.contract import Emission, Move, Outcome
from flare.ops.requests.cuda_opening import LIVE, Columns

_STOP, _LENGTH = tl.constexpr(int(Terminal.STOP)), tl.constexpr(int(Terminal.LENGTH))
_PAGE = tl.constexpr(PAGE_TOKENS)
_HEAD = tl.constexpr(RECORD_FIELDS)
_FAULT, _BOUNDARY = tl.constexpr(int(Flag.FAULT)), tl.constexpr(int(Flag.BOUNDARY))
_INFINITY = tl.constexpr(float("inf"))
(
    _REQUEST_ID, _GENERATION, _CONSUMED, _GENERATED, _TERMINAL, _EMITTED, _OFFERED, _ACCEPTED,
    _SOURCES, _DRAFT_POSITION, _WIDTH, _GRAPH, _ROUND, _FLAGS, _RESERVED_0, _RESERVED_1,
) = (tl.constexpr(int(field)) for field in Field)  # fmt: skip


class Emitted(NamedTuple):
    """An `Emission`; a tuple has a `count` of its own, so that one is `emitted` here."""

    tokens: Tensor
    kept: Tensor
    emitted: Tensor
    terminal: Tensor
    accepted: Tensor

    @classmethod
    def of(cls, emission: Emission) -> "Emitted":
        return cls(emission.tokens, emission.kept, emission.count, emission.terminal, emission.accepted)


class Moved(NamedTuple):
    """Results of a target, row strides, and rows per lane."""

    output: Tensor
    feedback: Tensor
    output_row: int
    feedback_row: int
    output_width: int
    feedback_width: int
    rows: int

    @classmethod
    def of(cls, move: Move, lanes: int) -> "Moved":
        output, feedback = move.output, move.feedback
        widths = (output.shape[1], feedback.shape[1])
        return cls(output, feedback, output.stride(0), feedback.stride(0), *widths, len(output) // lanes)


class Said(NamedTuple):
    """What a record takes of an `Outcome`; `crossed` is `faults` where no boundary can be crossed."""

    offered: Tensor
    sources: Tensor
    faults: Tensor
    crossed: Tensor
    sources_lane: int

    @classmethod
    def of(cls, outcome: Outcome) -> "Said":
        crossed = outcome.faults if outcome.crossed is None else outcome.crossed
        assert outcome.sources.stride(1) == 1 or outcome.sources.shape[1] < 2, "sources are dense"
        return cls(outcome.offered, outcome.sources, outcome.faults, crossed, outcome.sources.stride(0))


@triton.jit
def clip(
    out: Emitted, accepted_ptr, slots_ptr, live_ptr, budget_ptr, stops_ptr,
    STOPS: tl.constexpr, WIDTH: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """One lane."""
    b, w = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTHS)
    slot, live, budget = tl.load(slots_ptr + b), tl.load(live_ptr + b) != 0, tl.load(budget_ptr + b)
    accepted = tl.load(accepted_ptr + b)
    sampled = live & (w < WIDTH) & (w <= accepted)
    token = tl.load(out.tokens + b * WIDTH + w, sampled, 0)
    stop = w < 0
    for i in tl.static_range(STOPS):
        stop = stop | (token == tl.load(stops_ptr + slot * STOPS + i))
    stop = stop & sampled
    first = tl.min(tl.where(stop, w, WIDTHS), 0)
    kept = sampled & (w <= first) & (w < budget)
    count = tl.sum(kept.to(tl.int64), 0)
    spent = tl.where((count == budget) & live, _LENGTH, LIVE)
    stopped = tl.max((stop & kept).to(tl.int32), 0)
    tl.store(out.kept + b * WIDTH + w, kept, w < WIDTH)
    tl.store(out.emitted + b, count)
    tl.store(out.terminal + b, tl.where(stopped > 0, _STOP, spent))
    tl.store(out.accepted + b, tl.minimum(accepted, count))


@triton.jit
def find_crossing(
    lengths_ptr, emitted_ptr, boundary_rows_ptr, chosen_ptr, counts_ptr, slots_ptr, last_ptr, null_slot, width
):
    """One lane."""
    b = tl.program_id(0).to(tl.int64)
    count, row = _PAGE - tl.load(lengths_ptr + b) % _PAGE, tl.load(boundary_rows_ptr + b)
    chosen = (count <= tl.load(emitted_ptr + b)) & (row > null_slot)
    count = tl.where(chosen, count, 0)
    tl.store(chosen_ptr + b, chosen)
    tl.store(counts_ptr + b, count)
    tl.store(slots_ptr + b, tl.where(chosen, row, null_slot))
    tl.store(last_ptr + b, b * width + tl.maximum(count - 1, 0))


@triton.jit
def commit(
    table: Columns, emission: Emitted, slots_ptr, live_ptr, consumed_ptr, moved: Moved,
    SPENT: tl.constexpr, DOMAINS: tl.constexpr, RECENT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTHS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One live lane; the first program moves its numbers, the others keep a block each of its last row."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(live_ptr + b) == 0:
        return
    slot, consumed = tl.load(slots_ptr + b), tl.load(consumed_ptr + b)
    if part > 0:
        if consumed > 0:
            column, row = (part - 1) * BLOCK + tl.arange(0, BLOCK), b * moved.rows + consumed - 1
            inside = column < moved.feedback_width
            feedback = tl.load(moved.feedback + row * moved.feedback_row + column, inside)
            tl.store(table.feedback + slot * table.feedback_row + column, feedback, inside)
            inside = column < moved.output_width
            output = tl.load(moved.output + row * moved.output_row + column, inside)
            tl.store(table.output + slot * table.output_row + column, output, inside)
    else:
        w, count = tl.arange(0, WIDTHS), tl.load(emission.emitted + b)
        kept = tl.load(emission.kept + b * WIDTH + w, w < WIDTH, 0) != 0
        token = tl.load(emission.tokens + b * WIDTH + w, kept, 0)
        ones = tl.full((WIDTHS,), 1, tl.int32)
        tl.atomic_add(table.generated_counts + slot * table.vocab + token, ones, kept)
        at = tl.load(table.consumed + slot) + consumed
        place = (at - count + 1 + w) & (RECENT - 1)
        tl.store(table.recent + slot * RECENT + place, token, kept)
        if count > 0:
            tl.store(table.pending + slot, tl.load(emission.tokens + b * WIDTH + count - 1))
        tl.store(table.consumed + slot, at)
        tl.store(table.generated + slot, tl.load(table.generated + slot) + count)
        tl.store(table.terminal + slot, tl.load(emission.terminal + b))
        for i in tl.static_range(len(SPENT)):
            event = table.events + slot * DOMAINS + SPENT[i]
            tl.store(event, tl.load(event) + 1)


@triton.jit
def find_faults(
    output_ptr, row_stride, column_stride, active_ptr, broken_ptr, width, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    active = tl.load(active_ptr + row) != 0
    sums = tl.zeros((BLOCK,), tl.float64 if WIDE else tl.float32)
    if active:
        for start in range(0, width, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(output_ptr + row * row_stride + column * column_stride, column < width, 0.0)
            sums += x.to(sums.dtype)
    finite = tl.abs(tl.sum(sums, 0)) < _INFINITY  # false for what is not a number, too
    tl.store(broken_ptr + row, active & (finite == 0))


@triton.jit
def write_records(
    table: Columns, named_ptr, emission: Emitted, said: Said, records_ptr, width, graph,
    CROSSED: tl.constexpr, ROUNDS: tl.constexpr, DOMAINS: tl.constexpr, DEPTH: tl.constexpr, DEPTHS: tl.constexpr,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """The record of one named slot."""
    b = tl.program_id(0).to(tl.int64)
    named = tl.load(named_ptr + b)
    record, offered = records_ptr + named * (_HEAD + TOKENS), tl.load(said.offered + b)
    consumed, events = tl.load(table.consumed + named), table.events + named * DOMAINS
    flags = tl.load(said.faults + b).to(tl.int64) * _FAULT
    if CROSSED:
        flags += tl.load(said.crossed + b).to(tl.int64) * _BOUNDARY
    draft = tl.arange(0, DEPTHS)
    source = tl.load(said.sources + b * said.sources_lane + draft, (draft < DEPTH) & (draft < offered), 0)

    tl.store(record + _REQUEST_ID, tl.load(table.request_id + named))
    tl.store(record + _GENERATION, tl.load(table.generation + named))
    tl.store(record + _CONSUMED, consumed)
    tl.store(record + _GENERATED, tl.load(table.generated + named))
    tl.store(record + _TERMINAL, tl.load(table.terminal + named))
    tl.store(record + _EMITTED, tl.load(emission.emitted + b))
    tl.store(record + _OFFERED, offered)
    tl.store(record + _ACCEPTED, tl.load(emission.accepted + b))
    tl.store(record + _SOURCES, tl.sum(source.to(tl.int64) << (2 * draft), 0))
    tl.store(record + _DRAFT_POSITION, tl.maximum(consumed - 1, 0))
    tl.store(record + _WIDTH, width)
    tl.store(record + _GRAPH, graph)
    tl.store(record + _FLAGS, flags)
    tl.store(record + _ROUND, tl.load(events + ROUNDS[0]) + tl.load(events + ROUNDS[1]))
    tl.store(record + _RESERVED_0, 0)
    tl.store(record + _RESERVED_1, 0)

    w = tl.arange(0, FIELDS)
    kept = tl.load(emission.kept + b * WIDTH + w, w < WIDTH, 0) != 0
    token = tl.load(emission.tokens + b * WIDTH + w, kept, 0)
    tl.store(record + _HEAD + w, tl.where(kept, token, -1), w < TOKENS)
