"""The device request table: one row per slot, as admission and rounds left it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flare.bench.simulation.scripted.faults import require
from flare.bench.simulation.scripted.truth import Truth
from flare.contract.frames import COPY_TOKENS, Arguments, HostArray, Scalar, Terminal

RECENT_TOKENS = 32  # how far behind its tail a request remembers its ids
ORDINARY, PROPOSAL, VERIFY = range(3)


@dataclass(eq=False, slots=True)
class Row:
    """One slot.

    Attributes:
        tokens: prompt and generated ids, the pending one included; chain: hashes of all their prefixes.
        state: the hash in the slot's state tensors, which is that of `consumed` tokens unless something went wrong.
        events: spent per Philox domain.
        lost: a replay failed, nothing this row says means anything.
    """

    slot: int
    request: int
    generation: int
    tokens: list[int]
    chain: list[int]
    prompt_tokens: int
    generated: int
    max_tokens: int
    min_tokens: int
    stops: frozenset[int]
    logprobs: int
    events: list[int]
    state: int
    consumed: int = 0
    terminal: int = Terminal.LIVE
    lost: bool = False
    restored: int = 0

    @property
    def live(self) -> bool:
        return self.terminal == Terminal.LIVE

    @property
    def banned(self) -> frozenset[int]:
        """Ids that cannot be sampled next: stops before `min_tokens`."""
        return self.stops if self.generated < self.min_tokens else frozenset()

    def append(self, tokens: Sequence[int]) -> None:
        """Grow the known tokens by sampled ones."""
        prefix = self.chain[-1]
        for token in tokens:
            prefix = hash((prefix, token))
            self.chain.append(prefix)
        self.tokens += tokens
        self.generated += len(tokens)

    def remaining_copy(self, copy: "Copy") -> list[int]:
        """What a continuation still offers behind the pending token; nothing where it does not fit."""
        length = len(copy.tokens)
        if not length:
            return []
        start, end = copy.position, len(self.tokens)
        known = end - start
        require(start >= 1, "a continuation is anchored before the first token")
        if not 0 <= known < length or end - start + 1 > RECENT_TOKENS:
            return []
        if self.tokens[start - 1] != copy.before or self.tokens[start:] != copy.tokens[:known]:
            return []
        return copy.tokens[known:]


@dataclass(frozen=True, slots=True)
class Copy:
    """One lane's anchored continuation."""

    position: int
    before: int
    source: int
    tokens: list[int]


@dataclass(slots=True)
class Table:
    """All slots, and the latest row of every request that may come back."""

    truth: Truth
    rows: dict[int, Row] = field(default_factory=dict)
    _latest: dict[int, Row] = field(default_factory=dict)

    def admit(self, arguments: Arguments[HostArray], slot: int, generation: int) -> Row:
        """What the init graph does."""
        scalars: list[int] = arguments.scalars.tolist()
        count, prompt = scalars[Scalar.TOKEN_COUNT], scalars[Scalar.PROMPT_TOKENS]
        tokens = arguments.tokens[:count].tolist()
        previous = self.rows.get(slot)
        if previous is not None:
            require(generation > previous.generation, "a generation is used twice")
            if not previous.live:
                self._latest.pop(previous.request, None)
        row = Row(
            slot=slot,
            request=scalars[Scalar.REQUEST_ID],
            generation=generation,
            tokens=tokens,
            chain=self.truth.chain(tokens),
            prompt_tokens=prompt,
            generated=scalars[Scalar.GENERATED],
            max_tokens=scalars[Scalar.MAX_TOKENS],
            min_tokens=scalars[Scalar.MIN_TOKENS],
            stops=frozenset(arguments.stop_ids.tolist()) - {-1},
            logprobs=scalars[Scalar.LOGPROBS],
            events=[scalars[Scalar.ORDINARY_EVENTS], scalars[Scalar.PROPOSAL_EVENTS], scalars[Scalar.VERIFY_EVENTS]],
            state=self.truth.empty,
        )
        require(prompt >= 1 and count == prompt + row.generated, "an admission's counts do not add up")
        require(row.generated < row.max_tokens, "a request whose budget is spent is admitted")
        self._compare_resumed(row)
        self.rows[slot] = self._latest[row.request] = row
        return row

    def _compare_resumed(self, row: Row) -> None:
        """A parked request comes back with its own tokens, its events and nothing else."""
        left = self._latest.get(row.request)
        if left is None or not left.generated:
            require(row.generated == 0 and row.events == [0, 0, 0], "a new request has a past")
            return
        require(left.live and not left.lost, f"request {row.request} is resumed after its end")
        require(row.chain[-1] == left.chain[-1], f"request {row.request} is resumed with other tokens")
        require(row.generated == left.generated and row.prompt_tokens == left.prompt_tokens, "counts changed")
        require(row.events == left.events, f"events {row.events} of request {row.request} were {left.events}")


def copy_of(arguments: Arguments[HostArray], lane: int, length: int) -> Copy:
    """A lane's continuation as the host wrote it."""
    require(0 <= length <= COPY_TOKENS, "a continuation is too long")
    return Copy(
        int(arguments.copy_position[lane]),
        int(arguments.copy_before[lane]),
        int(arguments.copy_source[lane]),
        arguments.copy_tokens[lane, :length].tolist(),
    )
