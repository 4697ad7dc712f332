"""The device request table: tail, counters and policy of every slot, owned by the device between rounds.

Shapes: S slots (tables hold S + 1, the null slot last; those of a prefix, snapshot rows behind it), B lanes, W rows
per lane, V vocabulary, F feedback, H output.
"""

from collections.abc import Mapping
from dataclasses import fields

from torch import Tensor

from flare.contract.frames import Arguments
from flare.contract.manifest import Extent
from flare.contract.policies import STOP_IDS
from flare.drafting.contract import Tail
from flare.layers.rows import Hidden, PageTables
from flare.ops.requests import Emission, Lanes, Move, RequestOperators
from flare.ops.sampling import PolicyTable
from flare.plan.declarations import Declarations, SlotState
from flare.sampling.domains import Domain, offset, proposal_event

RECENT_TOKENS = 32


def declare_requests(extent: Extent, feedback_width: int, output_width: int, dtype: str) -> Declarations:
    """Every column of the table, named `requests.*`; a prefix has only what the target said of its last row."""
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
    return Declarations(
        state=(
            *(SlotState(f"requests.{name}", shape, kind, snapshot=False) for name, shape, kind in columns),
            SlotState("requests.feedback", (feedback_width,), dtype),
            SlotState("requests.output", (output_width,), dtype),
        )
    )


def _event_draws(domain: Domain) -> int:
    """Draws one round reserves in a domain."""
    next_event = proposal_event(1, 0) if domain is Domain.PROPOSAL else 1
    return offset(domain, next_event) - offset(domain, 0)


class RequestTable:
    """Reads and writes the table by lanes; every method is graph-safe. See `ops.requests.Table`."""

    event_draws: tuple[int, ...] = tuple(_event_draws(domain) for domain in Domain)
    round_domains: tuple[int, int] = (int(Domain.ORDINARY), int(Domain.VERIFY))

    def __init__(self, state: Mapping[str, Tensor], extent: Extent, ops: RequestOperators) -> None:
        column = {name.removeprefix("requests."): state[name] for name in state if name.startswith("requests.")}
        self.ops, self.null_slot = ops, extent.null_slot
        self.request_id, self.generation = column["request_id"], column["generation"]
        self.consumed, self.generated = column["consumed"], column["generated"]
        self.terminal, self.pending, self.seed = column["terminal"], column["pending"], column["seed"]
        self.max_tokens, self.logprobs = column["max_tokens"], column["logprobs"]
        self.events, self.recent = column["events"], column["recent"]
        self.feedback, self.output = column["feedback"], column["output"]
        self.policy = PolicyTable(**{field.name: column[field.name] for field in fields(PolicyTable)})

    def lanes(self, arguments: Arguments[Tensor], count: int) -> Lanes:
        """The first `count` lanes of a frame."""
        return self.ops.open_lanes(self, arguments, count)

    def held(self, arguments: Arguments[Tensor], count: int) -> Lanes:
        """The first `count` lanes of a frame; those whose request has ended but keeps its slot count as live."""
        return self.ops.open_lanes(self, arguments, count, ended=True)

    def tail(self, lanes: Lanes, pages: PageTables) -> Tail:
        """What the lanes carry into this round."""
        return Tail(
            slots=lanes.slots,
            live=lanes.live,
            pending=lanes.pending,
            feedback=lanes.feedback,
            consumed=lanes.consumed,
            recent=lanes.recent,
            pages=pages,
        )

    def advance(self, lanes: Lanes, domain: Domain) -> None:
        """Spend one event of a domain for every live lane."""
        self.events[lanes.slots, int(domain)] += lanes.live.long()

    def clip(self, tokens: Tensor, accepted: Tensor, lanes: Lanes) -> Emission:
        """End the sampled prefix at the first stop id and at the output budget; dead lanes emit nothing.

        Args:
            tokens: [B, W], accepted [B]: what the chain returned.
        """
        return self.ops.clip(self, lanes, tokens, accepted)

    def commit(self, lanes: Lanes, consumed: Tensor, hidden: Hidden, emission: Emission, *spent: Domain) -> None:
        """Move the tail over `consumed` [B] inputs, count the emitted tokens once, spend one event of each domain.

        Args:
            hidden: output [R, H] and feedback [R, F] of all rows of the lanes; those of the last consumed one are kept.
        """
        move = Move(consumed, hidden.output, hidden.feedback, tuple(int(domain) for domain in spent))
        self.ops.commit(self, lanes, move, emission)
