"""CUDA bookkeeping of a round: each operator is one launch with a program per lane, and more where rows are copied.

The kernels stand in `cuda_opening.py` (before the target runs) and `cuda_closing.py` (after it).
"""

# Launch options and constants of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
from torch import Tensor

from flare.contract.frames import RECORD_FIELDS, Arguments
from flare.ops.requests import cuda_closing as closing
from flare.ops.requests import cuda_opening as opening
from flare.ops.requests.contract import Crossing, Emission, Lanes, Move, Offer, Outcome, RequestOperators, Table
from flare.ops.requests.rows import PageTables, Rows
from flare.ops.short_conv import Boundary

_BLOCK = 1024
_ROW_TILE = 256


def open_lanes(table: Table, arguments: Arguments[Tensor], count: int, ended: bool = False) -> Lanes:
    """See the card."""
    named, width = arguments.lanes[:count], table.feedback.shape[1]
    fresh = [torch.empty_like(named) for _ in range(6)]
    lanes = Lanes(
        named=named,
        slots=fresh[0],
        live=_truths(named),
        pending=fresh[1],
        consumed=fresh[2],
        recent=table.recent.new_empty(count, table.recent.shape[1]),
        feedback=table.feedback.new_empty(count, width),
        budget=fresh[3],
        logprobs=fresh[4],
        seeds=fresh[5],
        offsets=named.new_empty(len(table.event_draws), count),
    )
    opening.open_lanes[(count, 1 + triton.cdiv(width, _BLOCK))](
        opening.columns(table), arguments.generations, opening.Opened(**vars(lanes)), width, count,
        ENDED=ended, RECENT=table.recent.shape[1], DRAWS=table.event_draws, BLOCK=_BLOCK,
    )  # fmt: skip
    return lanes


def make_offer(
    proposed: Tensor, learned: bool, lanes: Lanes, arguments: Arguments[Tensor], pages: PageTables, marker: int
) -> Offer:
    """See the card."""
    count, depth = proposed.shape
    inputs = proposed.new_empty(count, depth + 1)
    rows = _new_rows(inputs, torch.empty_like(lanes.slots), lanes.consumed, lanes.slots, pages)
    offer = Offer(inputs, torch.empty_like(lanes.slots), _truths(proposed), torch.empty_like(proposed), rows)
    opening.make_offer[(count,)](
        opening.Copies.of(arguments), opening.Lane.of(lanes, proposed), opening.Offered.of(offer),
        opening.Placed.of(rows), opening.Pages.of(pages), marker,
        DEPTH=depth, WIDTHS=triton.next_power_of_2(depth + 1), LEARNED=learned, RECENT=lanes.recent.shape[1],
        num_warps=1,
    )  # fmt: skip
    return offer


def causal_rows(tokens: Tensor, counts: Tensor, lengths: Tensor, slots: Tensor, pages: PageTables) -> Rows:
    """See the card."""
    lanes, width = tokens.shape
    rows = _new_rows(tokens, counts, lengths, slots, pages)
    tile = min(triton.next_power_of_2(width), _ROW_TILE)
    opening.causal_rows[(lanes, triton.cdiv(width, tile))](
        tokens, *tokens.stride(), counts.contiguous(), lengths.contiguous(), opening.Placed.of(rows),
        opening.Pages.of(pages), width, TILE=tile, num_warps=1,
    )  # fmt: skip
    return rows


def _new_rows(tokens: Tensor, counts: Tensor, lengths: Tensor, slots: Tensor, pages: PageTables) -> Rows:
    placed, positions = (torch.empty(tokens.shape, dtype=torch.int64, device=tokens.device) for _ in range(2))
    index = placed.new_empty(placed.numel())
    return Rows(placed, positions, _truths(placed), counts, lengths, slots, pages.tables, index)


def clip(table: Table, lanes: Lanes, tokens: Tensor, accepted: Tensor) -> Emission:
    """See the card."""
    (count, width), fresh = tokens.shape, [torch.empty_like(lanes.slots) for _ in range(3)]
    tokens = tokens.contiguous()
    emission = Emission(tokens, _truths(tokens), fresh[0], fresh[1], fresh[2])
    closing.clip[(count,)](
        closing.Emitted.of(emission), accepted, lanes.slots, lanes.live, lanes.budget, table.policy.stops,
        STOPS=table.policy.stops.shape[1], WIDTH=width, WIDTHS=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return emission


def find_crossing(lengths: Tensor, emitted: Tensor, boundary_rows: Tensor, null_slot: int, width: int) -> Crossing:
    """See the card."""
    counts, slots, last = (torch.empty_like(lengths) for _ in range(3))
    crossing = Crossing(_truths(lengths), Boundary(counts, slots), last)
    closing.find_crossing[(len(lengths),)](
        lengths, emitted, boundary_rows, crossing.chosen, counts, slots, last, null_slot, width, num_warps=1
    )
    return crossing


def commit(table: Table, lanes: Lanes, move: Move, emission: Emission) -> None:
    """See the card."""
    (count, width), widest = emission.tokens.shape, max(move.output.shape[1], move.feedback.shape[1])
    assert move.output.stride(1) == move.feedback.stride(1) == 1, "rows of a target's results are dense"
    closing.commit[(count, 1 + triton.cdiv(widest, _BLOCK))](
        opening.columns(table), closing.Emitted.of(emission), lanes.slots, lanes.live, move.consumed,
        closing.Moved.of(move, count),
        SPENT=move.spent, DOMAINS=table.events.shape[1], RECENT=table.recent.shape[1],
        WIDTH=width, WIDTHS=triton.next_power_of_2(width), BLOCK=_BLOCK,
    )  # fmt: skip


def find_faults(output: Tensor, active: Tensor, dtype: torch.dtype) -> Tensor:
    """See the card."""
    broken = torch.empty_like(active)
    closing.find_faults[(active.numel(),)](
        output, *output.stride(), active.contiguous(), broken, output.shape[1],
        WIDE=dtype == torch.float64, BLOCK=min(triton.next_power_of_2(output.shape[1]), _BLOCK),
    )  # fmt: skip
    return broken.any(1)


def write_records(table: Table, outcome: Outcome, records: Tensor, width: int, graph: int) -> None:
    """See the card."""
    (count, depth), tokens = outcome.sources.shape, records.shape[1] - RECORD_FIELDS
    closing.write_records[(count,)](
        opening.columns(table), outcome.lanes.named, closing.Emitted.of(outcome.emission), closing.Said.of(outcome),
        records, width, graph,
        CROSSED=outcome.crossed is not None, ROUNDS=table.round_domains, DOMAINS=table.events.shape[1],
        DEPTH=depth, DEPTHS=triton.next_power_of_2(max(depth, 1)), WIDTH=outcome.emission.tokens.shape[1],
        TOKENS=tokens, FIELDS=triton.next_power_of_2(tokens), num_warps=1,
    )  # fmt: skip


def _truths(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)


REQUESTS = RequestOperators(
    open_lanes=open_lanes,
    make_offer=make_offer,
    causal_rows=causal_rows,
    clip=clip,
    find_crossing=find_crossing,
    commit=commit,
    find_faults=find_faults,
    write_records=write_records,
)
