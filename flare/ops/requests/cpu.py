"""CPU bookkeeping of a round, also the reference of its CUDA twins: plain torch over all lanes at once."""

from functools import lru_cache

import torch
from torch import Tensor

from flare.contract.frames import COPY_TOKENS, RECORD_FIELDS, Arguments, Field, Flag, Source, Terminal
from flare.contract.manifest import PAGE_TOKENS
from flare.ops.requests.contract import Crossing, Emission, Lanes, Move, Offer, Outcome, RequestOperators, Table
from flare.ops.requests.rows import PageTables, causal_rows
from flare.ops.short_conv import Boundary


def open_lanes(table: Table, arguments: Arguments[Tensor], count: int, ended: bool = False) -> Lanes:
    """See the card."""
    named = arguments.lanes[:count]
    live = live_lanes(table, arguments, count, ended)
    slots = named.where(live, table.null_slot)
    starts, draws = _domains(table.event_draws, named.device)
    return Lanes(
        named=named,
        slots=slots,
        live=live,
        pending=table.pending[slots],
        consumed=table.consumed[slots],
        recent=table.recent[slots],
        feedback=table.feedback[slots],
        budget=table.max_tokens[slots] - table.generated[slots],
        logprobs=table.logprobs[slots].where(live, -1),
        seeds=table.seed[slots],
        offsets=starts + table.events[slots].T * draws,
    )


@lru_cache(maxsize=8)
def _domains(event_draws: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each domain begins and what an event of it takes, [domains, 1]."""
    starts = [domain << 60 for domain in range(len(event_draws))]
    return torch.tensor(starts, device=device)[:, None], torch.tensor(event_draws, device=device)[:, None]


def live_lanes(table: Table, arguments: Arguments[Tensor], count: int, ended: bool) -> Tensor:
    """[B] bool."""
    named = arguments.lanes[:count]
    live = (table.generation[named] == arguments.generations[:count]) & (named != table.null_slot)
    return live if ended else live & (table.terminal[named] == Terminal.LIVE)


def make_offer(
    proposed: Tensor, learned: bool, lanes: Lanes, arguments: Arguments[Tensor], pages: PageTables, marker: int
) -> Offer:
    """See the card."""
    tokens, point, count = substitute_copies(proposed, learned, lanes, arguments)
    length = valid_length(count, lanes, arguments)
    drafted = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    inputs = torch.cat((lanes.pending[:, None], tokens.where(drafted, marker)), 1)
    sources = arguments.copy_source[: len(point), None].where(point, int(Source.LEARNED))
    rows = causal_rows(inputs, (length + 1).where(lanes.live, 0), lanes.consumed, lanes.slots, pages)
    return Offer(inputs, length, point & drafted, sources, rows)


def substitute_copies(
    proposed: Tensor, learned: bool, lanes: Lanes, arguments: Arguments[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Drafts [B, D], which of them are copies [B, D], and how many are on offer [B]."""
    depth = proposed.shape[1]
    if depth == 0:
        return proposed, proposed.bool(), torch.zeros_like(lanes.consumed)
    copied, fresh = remaining_copy(lanes, arguments, depth)
    point = torch.arange(depth, device=fresh.device) < fresh[:, None]
    # Learned drafts after a copy were drawn after other tokens where the copy differs: nobody would accept them.
    follows = ((copied == proposed) | ~point).all(1)
    return torch.where(point, copied, proposed), point, fresh.where(~follows, depth) if learned else fresh


def remaining_copy(lanes: Lanes, arguments: Arguments[Tensor], depth: int) -> tuple[Tensor, Tensor]:
    """The copied drafts [B, D] and how many of them are real [B]."""
    count = len(lanes.slots)
    start, length = arguments.copy_position[:count], arguments.copy_length[:count]
    tokens = arguments.copy_tokens[:count]
    known = lanes.consumed + 1 - start  # continuation tokens already committed or pending
    offset = torch.arange(COPY_TOKENS, device=tokens.device)
    window = lanes.recent.shape[1]
    committed = lanes.recent.gather(1, (start[:, None] + offset) % window)
    agrees = ((tokens == committed) | (offset >= known[:, None])).all(1)
    before = lanes.recent.gather(1, (start[:, None] - 1) % window).squeeze(1)
    fits = agrees & (before == arguments.copy_before[:count]) & (known >= 0) & (known < length) & lanes.live
    fresh = torch.where(fits, (length - known).clamp(max=depth), 0)
    place = (known.clamp_min(0)[:, None] + torch.arange(depth, device=tokens.device)).clamp(max=COPY_TOKENS - 1)
    return tokens.gather(1, place), fresh


def valid_length(count: Tensor, lanes: Lanes, arguments: Arguments[Tensor]) -> Tensor:
    """[B] drafts c each lane really offers: what was proposed, the host's ceiling, and the budget less its own token.

    The budget was bounded by the context at admission, so it covers the context too.
    """
    length = torch.minimum(torch.minimum(count, arguments.ceilings[: len(count)]), lanes.budget - 1)
    return length.clamp_min(0).where(lanes.live, 0)


def clip(table: Table, lanes: Lanes, tokens: Tensor, accepted: Tensor) -> Emission:
    """See the card."""
    index = torch.arange(tokens.shape[1], device=tokens.device)
    sampled = (index <= accepted[:, None]) & lanes.live[:, None]
    stops = table.policy.stops[lanes.slots]
    stop = (tokens[:, :, None] == stops[:, None, :]).any(-1) & sampled
    after_stop = stop.long().cumsum(1) - stop.long() > 0
    kept = sampled & ~after_stop & (index < lanes.budget[:, None])
    count = kept.sum(1)
    spent = torch.where((count == lanes.budget) & lanes.live, int(Terminal.LENGTH), int(Terminal.LIVE))
    terminal = torch.where((stop & kept).any(1), int(Terminal.STOP), spent)
    return Emission(tokens, kept, count, terminal, torch.minimum(accepted, count))


def find_crossing(lengths: Tensor, emitted: Tensor, boundary_rows: Tensor, null_slot: int, width: int) -> Crossing:
    """See the card."""
    count = PAGE_TOKENS - lengths % PAGE_TOKENS
    chosen = (count <= emitted) & (boundary_rows > null_slot)
    count = count.where(chosen, 0)
    first = torch.arange(len(lengths), device=lengths.device) * width
    return Crossing(chosen, Boundary(count, boundary_rows.where(chosen, null_slot)), first + (count - 1).clamp_min(0))


def commit(table: Table, lanes: Lanes, move: Move, emission: Emission) -> None:
    """See the card."""
    slots, kept, count = lanes.slots, emission.kept, emission.count
    at = table.consumed[slots] + move.consumed
    newest = emission.tokens.gather(1, (count - 1).clamp_min(0)[:, None]).squeeze(1)
    rows = slots[:, None].where(kept, table.null_slot)
    tokens = emission.tokens.where(kept, 0)
    counts = table.policy.generated_counts
    # Whole numbers add up alike in any order; an accumulating index_put would sort them first.
    counts.view(-1).scatter_add_(0, (rows * counts.shape[1] + tokens).view(-1), kept.int().view(-1))
    first = at - count + 1
    places = (first[:, None] + torch.arange(tokens.shape[1], device=tokens.device)) % table.recent.shape[1]
    table.recent[rows, places] = tokens
    keep_tail(table, slots, move)
    table.pending[slots] = torch.where(count > 0, newest, table.pending[slots])
    table.consumed[slots] = at
    table.generated[slots] += count
    table.terminal[slots] = torch.where(lanes.live, emission.terminal, table.terminal[slots])
    for domain in move.spent:
        table.events[slots, domain] += lanes.live.long()


def keep_tail(table: Table, slots: Tensor, move: Move) -> None:
    """Feedback and output of each lane's last consumed row, where there is one."""
    lanes, moved = len(slots), (move.consumed > 0)[:, None]
    first = torch.arange(lanes, device=slots.device) * (len(move.output) // lanes)
    last = first + (move.consumed - 1).clamp_min(0)
    for column, rows in ((table.feedback, move.feedback), (table.output, move.output)):
        column[slots] = torch.where(moved, rows[last], column[slots])


def find_faults(output: Tensor, active: Tensor, dtype: torch.dtype) -> Tensor:
    """See the card."""
    broken = ~output.sum(-1, dtype=dtype).isfinite().view(active.shape)
    return (broken & active).any(1)


def write_records(table: Table, outcome: Outcome, records: Tensor, width: int, graph: int) -> None:
    """See the card."""
    named, emission = outcome.lanes.named, outcome.emission
    events, consumed = table.events[named], table.consumed[named]
    ordinary, speculative = table.round_domains
    values: dict[Field, Tensor | int] = {
        Field.REQUEST_ID: table.request_id[named],
        Field.GENERATION: table.generation[named],
        Field.CONSUMED: consumed,
        Field.GENERATED: table.generated[named],
        Field.TERMINAL: table.terminal[named],
        Field.EMITTED: emission.count,
        Field.OFFERED: outcome.offered,
        Field.ACCEPTED: emission.accepted,
        Field.SOURCES: _source_bits(outcome.sources, outcome.offered),
        Field.DRAFT_POSITION: (consumed - 1).clamp_min(0),
        Field.WIDTH: width,
        Field.GRAPH: graph,
        Field.FLAGS: _flags(outcome),
        Field.ROUND: events[:, ordinary] + events[:, speculative],
    }
    head = torch.stack([_column(values.get(field, 0), named) for field in Field], 1)
    tokens = emission.tokens.where(emission.kept, -1)
    padding = tokens.new_full((tokens.shape[0], records.shape[1] - RECORD_FIELDS - tokens.shape[1]), -1)
    records[named] = torch.cat((head, tokens, padding), 1)


def _flags(outcome: Outcome) -> Tensor:
    """[B] bits of `Flag`."""
    flags = outcome.faults * int(Flag.FAULT)
    return flags if outcome.crossed is None else flags + outcome.crossed * int(Flag.BOUNDARY)


def _column(value: Tensor | int, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, value)


def _source_bits(sources: Tensor, offered: Tensor) -> Tensor:
    """Two bits per offered depth."""
    index = torch.arange(sources.shape[1], device=sources.device)
    return (sources.where(index < offered[:, None], 0) << (2 * index)).sum(1)


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
