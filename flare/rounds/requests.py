"""The device request table: tail, counters and policy of every slot, owned by the device between rounds.

Shapes: S slots (tables hold S + 1, the null slot last), B lanes, W rows per lane, V vocabulary, F feedback.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from flare.contract.frames import Arguments, Terminal
from flare.contract.manifest import Extent
from flare.contract.policies import STOP_IDS
from flare.drafting.contract import Tail
from flare.layers.rows import PageTables
from flare.ops.sampling import PolicyTable
from flare.plan.declarations import Declarations, SlotState
from flare.sampling.domains import Domain, offset

RECENT_TOKENS = 32


@dataclass(frozen=True)
class Lanes:
    """The requests of one round.

    Attributes:
        named: [B] int64 slots as the host named them; the record goes there.
        slots: [B] int64, dead and padded lanes replaced by the null slot; state goes there.
        live: [B] bool: generation matches and the request has not ended.
    """

    named: Tensor
    slots: Tensor
    live: Tensor


@dataclass(frozen=True)
class Draws:
    """One Philox domain of each lane: keys [B] int64 and the offset [B] int64 where this round's range begins."""

    seeds: Tensor
    offsets: Tensor


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


def declare_requests(extent: Extent, feedback_width: int, dtype: str) -> Declarations:
    """Every column of the table, named `requests.*`."""
    int64 = ("request_id", "generation", "consumed", "generated", "terminal", "pending", "seed")
    policy_int64 = ("top_k", "min_tokens", "max_tokens", "logprobs")
    float32 = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
    columns = [
        *((name, (), "int64") for name in (*int64, *policy_int64)),
        *((name, (), "float32") for name in float32),
        ("plain", (), "bool"),
        ("stops", (STOP_IDS,), "int64"),
        ("events", (len(Domain),), "int64"),
        ("recent", (RECENT_TOKENS,), "int64"),
        ("prompt_counts", (extent.vocab,), "int32"),
        ("generated_counts", (extent.vocab,), "int32"),
        ("bias", (extent.vocab,), "float32"),
    ]
    state = [SlotState(f"requests.{name}", shape, kind) for name, shape, kind in columns]
    return Declarations(state=(*state, SlotState("requests.feedback", (feedback_width,), dtype)))


class RequestTable:
    """Reads and writes the table by lanes; every method is graph-safe."""

    def __init__(self, state: Mapping[str, Tensor], extent: Extent) -> None:
        column = {name.removeprefix("requests."): state[name] for name in state if name.startswith("requests.")}
        self.null_slot, self.context = extent.null_slot, extent.context
        self.request_id, self.generation = column["request_id"], column["generation"]
        self.consumed, self.generated = column["consumed"], column["generated"]
        self.terminal, self.pending, self.seed = column["terminal"], column["pending"], column["seed"]
        self.max_tokens, self.logprobs = column["max_tokens"], column["logprobs"]
        self.events, self.recent, self.feedback = column["events"], column["recent"], column["feedback"]
        self.policy = PolicyTable(**{field.name: column[field.name] for field in fields(PolicyTable)})

    def lanes(self, arguments: Arguments[Tensor], count: int) -> Lanes:
        """The first `count` lanes of a frame."""
        slots = arguments.lanes[:count]
        live = (
            (slots != self.null_slot)
            & (self.generation[slots] == arguments.generations[:count])
            & (self.terminal[slots] == Terminal.LIVE)
        )
        return Lanes(slots, slots.where(live, self.null_slot), live)

    def tail(self, lanes: Lanes, pages: PageTables) -> Tail:
        """What the lanes carry into this round."""
        slots = lanes.slots
        return Tail(
            slots=slots,
            live=lanes.live,
            pending=self.pending[slots],
            feedback=self.feedback[slots],
            consumed=self.consumed[slots],
            recent=self.recent[slots],
            pages=pages,
        )

    def draws(self, lanes: Lanes, domain: Domain) -> Draws:
        """Where this round's range of a domain begins; `advance` moves it on."""
        return Draws(self.seed[lanes.slots], offset(domain, self.events[lanes.slots, int(domain)]))

    def advance(self, lanes: Lanes, domain: Domain) -> None:
        """Spend one event of a domain for every live lane, whatever was accepted."""
        self.events[lanes.slots, int(domain)] += lanes.live.long()

    def budget_left(self, lanes: Lanes) -> Tensor:
        """[B] tokens the lanes may still emit."""
        return self.max_tokens[lanes.slots] - self.generated[lanes.slots]

    def clip(self, tokens: Tensor, accepted: Tensor, lanes: Lanes) -> Emission:
        """End the sampled prefix at the first stop id and at the output budget; dead lanes emit nothing.

        Args:
            tokens: [B, W], accepted [B]: what the chain returned.
        """
        index = torch.arange(tokens.shape[1], device=tokens.device)
        sampled = (index <= accepted[:, None]) & lanes.live[:, None]
        stops = self.policy.stops[lanes.slots]
        stop = (tokens[:, :, None] == stops[:, None, :]).any(-1) & sampled
        after_stop = stop.long().cumsum(1) - stop.long() > 0
        budget = self.budget_left(lanes)
        kept = sampled & ~after_stop & (index < budget[:, None])
        count = kept.sum(1)
        spent = torch.where((count == budget) & lanes.live, int(Terminal.LENGTH), int(Terminal.LIVE))
        terminal = torch.where((stop & kept).any(1), int(Terminal.STOP), spent)
        return Emission(tokens, kept, count, terminal, torch.minimum(accepted, count))

    def commit(self, lanes: Lanes, consumed: Tensor, feedback: Tensor, emission: Emission) -> None:
        """Move the tail over `consumed` [B] inputs and count the emitted tokens once.

        Args:
            feedback: [B, F] target feedback of each lane's last consumed row.
        """
        slots, kept, count = lanes.slots, emission.kept, emission.count
        at = self.consumed[slots] + consumed
        last = emission.tokens.gather(1, (count - 1).clamp_min(0)[:, None]).squeeze(1)
        rows = slots[:, None].where(kept, self.null_slot)
        tokens = emission.tokens.where(kept, 0)
        self.policy.generated_counts.index_put_(
            (rows.reshape(-1), tokens.reshape(-1)), kept.reshape(-1).int(), accumulate=True
        )
        # The t emitted tokens are x[N'−t+1 … N'] for the new consumed count N'.
        first = at - count + 1
        places = (first[:, None] + torch.arange(tokens.shape[1], device=tokens.device)) % RECENT_TOKENS
        self.recent[rows, places] = tokens
        moved = consumed > 0
        self.feedback[slots] = torch.where(moved[:, None], feedback, self.feedback[slots])
        self.pending[slots] = torch.where(count > 0, last, self.pending[slots])
        self.consumed[slots] = at
        self.generated[slots] += count
        self.terminal[slots] = torch.where(lanes.live, emission.terminal, self.terminal[slots])
