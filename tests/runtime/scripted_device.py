"""A device with its own truth: scripted next tokens, and every rule of the contract checked as it is used.

It keeps its own tokens per slot, writes a fingerprint of every consumed prefix into the pages the host names and reads
them all back before each graph, so a wrong page table, a page given away too early or a stale lane is found at once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flare.contract.device import FRAMES
from flare.contract.frames import (
    COPY_TOKENS,
    RECORD_FIELDS,
    Arguments,
    Completion,
    Field,
    Flag,
    Real,
    Scalar,
    Source,
    Terminal,
    host_arguments,
    host_completion,
)
from flare.contract.manifest import PAGE_TOKENS, DraftSource, ExecutionGraph, Extent, Manifest

Truth = Callable[[Sequence[int]], int]
RECENT_TOKENS = 32


class ContractError(AssertionError):
    """The host broke the contract."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ContractError(what)


def scripted_manifest(
    lanes: int = 4,
    slots: int | None = None,
    widths: Sequence[int] = range(1, 9),
    chunks: Sequence[int] = (4, 8, 16),
    context: int = 256,
    pages: int | None = None,
    vocab: int = 512,
    snapshots: int = 0,
    paged: bool = False,
    draft_source: DraftSource = "copy",
) -> Manifest:
    """A catalog with both modes: ordinary decoding, and a rectangle for every batch and width.

    Args:
        snapshots, paged: where either is set, prefixes can be kept and restored; draft_source: one with mtp makes the
            device keep pairs of each token and the next, as an absorbing drafter does.
    """
    batches = [1 << i for i in range(lanes.bit_length()) if 1 << i <= lanes]
    graphs = [ExecutionGraph(0, "init", 1, 0)]
    graphs += [ExecutionGraph(0, "prefill", 1, chunk) for chunk in chunks]
    graphs += [ExecutionGraph(0, "resume", 1, chunk) for chunk in chunks]
    graphs += [ExecutionGraph(0, "decode", batch, 1, speculation_enabled=False) for batch in batches]
    graphs += [
        ExecutionGraph(0, "speculative", b, w, draft_tokens=w - 1, draft_source=draft_source, speculation_enabled=True)
        for b in batches
        for w in widths
    ]
    if snapshots or paged:
        graphs += [ExecutionGraph(0, "snapshot", 1, 0), ExecutionGraph(0, "restore", 1, 0)]
    numbered = tuple(ExecutionGraph(**{**vars(graph), "id": index}) for index, graph in enumerate(graphs))
    row = -(-context // PAGE_TOKENS)
    slots = lanes if slots is None else slots
    pages = slots * row if pages is None else pages
    extent = Extent(
        lanes, slots, pages, row, max(widths, default=1), max(chunks), context, vocab, 5, snapshots, paged=paged
    )
    return Manifest(numbered, extent)


@dataclass
class Held:
    """One slot as the device knows it.

    Attributes:
        known: the tokens that chunks may hold: the prompt, of a resumed request all but its pending token.
        pairs: positions whose pair with the next token is kept.
    """

    request: int
    generation: int
    known: list[int]
    max_tokens: int
    min_tokens: int
    stops: set[int]
    logprobs: int
    temperature: float
    pages: list[int]
    consumed: list[int] = field(default_factory=list)
    pending: int | None = None
    generated: int = 0
    terminal: int = Terminal.LIVE
    rounds: int = 0
    pairs: int = 0

    @property
    def prefix(self) -> list[int]:
        return self.consumed if self.pending is None else [*self.consumed, self.pending]


@dataclass
class Pair:
    """A frame: its buffers and where it stands in its cycle."""

    arguments: Arguments
    completion: Completion
    graph: ExecutionGraph | None = None
    executed: bool = False
    slots: frozenset[int] = frozenset()
    rows: frozenset[int] = frozenset()


class ScriptedDevice:
    """Executes graphs lazily, in order of submission, when a frame is polled or collected.

    Attributes:
        truth: the next token after a prefix.
        log: (kind, batch, width or tokens, lanes) of every executed graph.
        most_queued: most rounds that were submitted at a time; dead: lanes that had ended when a round reached them.
        rows: the prefix each snapshot row holds; crossings: boundaries written by rounds.
    """

    def __init__(self, manifest: Manifest, truth: Truth) -> None:
        self.manifest = manifest
        self.truth = truth
        self.log: list[tuple[str, int, int, int]] = []
        self.held: dict[int, Held] = {}
        self._extent = manifest.extent
        self._pairs = [Pair(host_arguments(self._extent), host_completion(self._extent)) for _ in range(FRAMES)]
        self._queue: deque[Pair] = deque()
        self.rows: dict[int, tuple[int, ...]] = {}
        self.most_queued = self.dead = self.crossings = 0
        self._absorbing = any(graph.draft_source in ("mtp", "mtp+copy") for graph in manifest.graphs)
        self._spent: dict[int, list[int]] = {}  # ordinary and round events by request
        self._pairs_storage: dict[tuple[int, int], int] = {}
        self._storage: dict[tuple[int, int], int] = {}

    def attach(self) -> None:
        """One engine a script: nothing to share."""

    def detach(self) -> None:
        """Nothing was taken."""

    def arguments(self, frame: int) -> Arguments:
        require(self._pairs[frame].graph is None, "arguments of a frame that is not released")
        return self._pairs[frame].arguments

    def submit(self, graph: int, frame: int) -> None:
        pair = self._pairs[frame]
        require(pair.graph is None, "a frame is submitted before its release")
        pair.graph, pair.executed = self.manifest.graphs[graph], False
        self._check_lanes(pair)
        self._queue.append(pair)
        rounds = [other for other in self._pairs if other.graph and other.graph.kind in ("decode", "speculative")]
        self.most_queued = max(self.most_queued, len(rounds))

    def poll(self, frame: int) -> bool:
        self._run_until(self._submitted(frame))
        return True

    def collect(self, frame: int) -> Completion:
        pair = self._submitted(frame)
        self._run_until(pair)
        return pair.completion

    def release(self, frame: int) -> None:
        pair = self._submitted(frame)
        require(pair.executed, "a frame is released while it runs")
        pair.graph = None
        pair.completion.records[:] = -77  # what the host still reads after this must not make sense
        pair.completion.logprob_ids[:] = -77

    def _submitted(self, frame: int) -> Pair:
        require(self._pairs[frame].graph is not None, "the frame was not submitted")
        return self._pairs[frame]

    def _run_until(self, pair: Pair) -> None:
        while not pair.executed:
            self._execute(self._queue.popleft())

    def _check_lanes(self, pair: Pair) -> None:
        """Named lanes are distinct, the others are null; nothing an unreleased frame names changes hands."""
        arguments, extent, graph = pair.arguments, self._extent, pair.graph
        assert graph is not None
        named = [int(slot) for slot in arguments.lanes if slot != extent.null_slot]
        require(len(set(named)) == len(named) >= 1, "lanes name a slot twice, or none")
        require(len(named) <= graph.batch_capacity, "more lanes are named than the graph has")
        require(all(0 <= slot < extent.slots for slot in named), "a lane names no slot")
        require(arguments.lanes[: len(named)].tolist() == named, "padded lanes come last")
        for lane in range(len(named), extent.lanes):
            require((arguments.page_tables[lane] == extent.null_page).all(), "a padded lane names pages")
            require(arguments.ceilings[lane] == arguments.copy_length[lane] == 0, "a padded lane is offered drafts")
        pages = {int(page) for page in arguments.page_tables[: len(named)].flat if page != extent.null_page}
        require(all(0 <= page < extent.pages for page in pages), "a page table names no page")
        require(not arguments.masked.any(), "nothing was masked")
        pair.slots = frozenset(named)
        self._check_rows(pair, len(named))
        if graph.kind == "init":
            for other in self._queue:
                require(not other.slots & pair.slots, "given away while a frame names it")

    def _check_rows(self, pair: Pair, lanes: int) -> None:
        """Snapshot rows exist; two frames may name one only for the same request's rounds."""
        extent, rows = self._extent, pair.arguments.boundary_slots
        require((rows[lanes:] == -1).all(), "a padded lane names a snapshot")
        named = [int(row) for row in rows if row != -1]
        first = extent.snapshot_row(0)
        require(all(first <= row < first + extent.snapshots for row in named), "a lane names no snapshot row")
        require(len(set(named)) == len(named), "two lanes name one snapshot")
        pair.rows = frozenset(named)
        for other in self._pairs:
            if other is not pair and other.graph is not None and other.rows & pair.rows:
                rounds = {"decode", "speculative"}
                assert pair.graph is not None
                require({other.graph.kind, pair.graph.kind} <= rounds, "a snapshot a frame names is given away")

    def _execute(self, pair: Pair) -> None:
        graph, lanes = pair.graph, len(pair.slots)
        assert graph is not None
        self.log.append((graph.kind, graph.batch_capacity, graph.token_capacity, lanes))
        pair.completion.records[:] = -66
        if graph.kind == "init":
            self._init(pair)
        for lane in range(lanes):
            held = self._lane(pair, lane)
            row = int(pair.arguments.boundary_slots[lane])
            if graph.kind == "restore":
                self._restore(pair, held, row)
            self._read_back(held)
            if graph.kind in ("prefill", "resume"):
                self._chunk(pair, held, row)
            elif graph.kind == "snapshot":
                self.rows[row] = tuple(held.consumed)
                self._emit_nothing(pair, held)
            elif graph.kind in ("decode", "speculative"):
                if held.terminal == Terminal.LIVE:
                    self._round(pair, held, lane)
                else:
                    self.dead += 1
                    self._emit_nothing(pair, held)
        pair.executed = True

    def _init(self, pair: Pair) -> None:
        arguments = pair.arguments
        scalars, slot = arguments.scalars, int(arguments.lanes[0])
        count, generation = int(scalars[Scalar.TOKEN_COUNT]), int(arguments.generations[0])
        generated, request = int(scalars[Scalar.GENERATED]), int(scalars[Scalar.REQUEST_ID])
        previous = self.held.get(slot)
        require(previous is None or generation > previous.generation, "a generation is used twice")
        require(count == scalars[Scalar.PROMPT_TOKENS] + generated >= 1, "the tokens are the prompt and what followed")
        spent = self._spent.setdefault(request, [0, 0])
        events = [int(scalars[place]) for place in (Scalar.ORDINARY_EVENTS, Scalar.VERIFY_EVENTS)]
        require(events == spent, f"request {request} has spent {spent} events, not {events}")
        require(scalars[Scalar.PROPOSAL_EVENTS] == scalars[Scalar.VERIFY_EVENTS], "each round spends both")
        tokens = arguments.tokens[:count].tolist()
        self.held[slot] = Held(
            request=request,
            generation=generation,
            known=tokens[:-1] if generated else tokens,
            max_tokens=int(scalars[Scalar.MAX_TOKENS]),
            min_tokens=int(scalars[Scalar.MIN_TOKENS]),
            stops=set(arguments.stop_ids.tolist()) - {-1},
            logprobs=int(scalars[Scalar.LOGPROBS]),
            temperature=float(arguments.reals[Real.TEMPERATURE]),
            pages=[],
            pending=tokens[-1] if generated else None,
            generated=generated,
        )
        self._emit_nothing(pair, self.held[slot])

    def _lane(self, pair: Pair, lane: int) -> Held:
        slot = int(pair.arguments.lanes[lane])
        held = self.held.get(slot)
        require(held is not None, "a lane names a slot that was never initialised")
        assert held is not None
        require(int(pair.arguments.generations[lane]) == held.generation, "a lane names an outdated generation")
        named = [int(page) for page in pair.arguments.page_tables[lane] if page != self._extent.null_page]
        require(len(set(named)) == len(named), "a page table names a page twice")
        require(named[: len(held.pages)] == held.pages, "a page table changed")
        held.pages = named
        return held

    def _restore(self, pair: Pair, held: Held, row: int) -> None:
        scalars, null_page = pair.arguments.scalars, self._extent.null_page
        consumed, copied = int(scalars[Scalar.CONSUMED]), int(scalars[Scalar.COPY_FROM])
        require(not held.consumed, "a restore does not follow init")
        if row >= 0:
            require(len(self.rows.get(row, ())) == consumed, "the snapshot holds another prefix")
            held.consumed = list(self.rows[row])
        else:
            require(self._extent.paged and consumed % PAGE_TOKENS == 0 and copied == null_page, "nothing to restore")
            held.consumed = held.known[:consumed]
        require(held.consumed == held.known[:consumed], "the snapshot belongs to another prompt")
        if copied != null_page:
            written = int(scalars[Scalar.COPY_TO])
            require(written == held.pages[(consumed - 1) // PAGE_TOKENS], "the copy is not the prefix's last page")
            for storage in (self._storage, self._pairs_storage):
                for offset in range(PAGE_TOKENS):
                    storage[written, offset] = storage.get((copied, offset), 0)
        held.pairs = max(0, consumed - 1)
        if scalars[Scalar.SAMPLE]:
            require(row >= 0 and consumed == len(held.known), "a sample without the output of the last token")
            require(held.pending is None, "a resumed request samples")
            self._emit(pair, held, [self._sample(held, held.consumed, 0)], [], 0)
        else:
            self._emit_nothing(pair, held)

    def _read_back(self, held: Held) -> None:
        fingerprint = 0
        for position, token in enumerate(held.consumed):
            fingerprint = hash((fingerprint, token))
            place = (held.pages[position // PAGE_TOKENS], position % PAGE_TOKENS)
            require(self._storage.get(place) == fingerprint, f"position {position} of request {held.request} was lost")
            if self._absorbing and position < held.pairs:
                pair = hash((fingerprint, held.prefix[position + 1]))
                require(
                    self._pairs_storage.get(place) == pair, f"pair {position} of request {held.request} is another's"
                )

    def _consume(self, held: Held, tokens: Sequence[int], row: int = -1) -> bool:
        """Whether the row was written at a page boundary on the way."""
        crossed = False
        for token in tokens:
            position = len(held.consumed)
            require(position // PAGE_TOKENS < len(held.pages), "too few pages for what is consumed")
            page, offset = held.pages[position // PAGE_TOKENS], position % PAGE_TOKENS
            before = (held.pages[(position - 1) // PAGE_TOKENS], (position - 1) % PAGE_TOKENS)
            fingerprint = self._storage[before] if position else 0
            self._storage[page, offset] = hash((fingerprint, token))
            if position:
                self._pairs_storage[before] = hash((fingerprint, token))
            held.consumed.append(token)
            held.pairs = position
            if row >= 0 and len(held.consumed) % PAGE_TOKENS == 0:
                require(not crossed, "two boundaries in one round")
                self.rows[row], crossed = tuple(held.consumed), True
        self.crossings += crossed
        return crossed

    def _sample(self, held: Held, prefix: Sequence[int], row: int) -> int:
        token = self.truth(prefix)
        while held.generated + row < held.min_tokens and token in held.stops:
            token = (token + 1) % self._extent.vocab
        return token

    def _chunk(self, pair: Pair, held: Held, row: int) -> None:
        arguments, graph = pair.arguments, pair.graph
        assert graph is not None
        count, start = int(arguments.scalars[Scalar.TOKEN_COUNT]), len(held.consumed)
        require(1 <= count <= graph.token_capacity, "a chunk exceeds its graph")
        tokens = arguments.tokens[:count].tolist()
        require(tokens == held.known[start : start + count], "a chunk is not the prompt's next")
        self._consume(held, tokens)
        if row >= 0:
            self.rows[row] = tuple(held.consumed)
        if graph.kind == "prefill":
            require(
                len(held.consumed) == len(held.known) and held.pending is None, "only a prompt's last chunk samples"
            )
            self._emit(pair, held, [self._sample(held, held.consumed, 0)], [], 0)
        else:
            require(held.pending is not None or len(held.consumed) < len(held.known), "the last chunk must sample")
            self._emit_nothing(pair, held)

    def _round(self, pair: Pair, held: Held, lane: int) -> None:
        require(held.pending is not None, "a round without a pending token")
        require(held.pending is None or len(held.consumed) >= len(held.known), "a round before all was restored")
        assert pair.graph is not None
        copied, source = self._copy(pair.arguments, held, lane)
        ceiling = int(pair.arguments.ceilings[lane])
        left = held.max_tokens - held.generated
        count = max(0, min(len(copied), ceiling, left - 1, pair.graph.token_capacity - 1))
        drafts = copied[: 0 if pair.graph.kind == "decode" else count]
        prefix, sampled = list(held.prefix), []
        for row in range(len(drafts) + 1):
            token = self._sample(held, prefix, row)
            sampled.append(token)
            prefix.append(token)
            if row < len(drafts) and drafts[row] != token:
                break
        held.rounds += 1
        self._emit(pair, held, sampled, drafts, source, int(pair.arguments.boundary_slots[lane]))

    def _copy(self, arguments: Arguments, held: Held, lane: int) -> tuple[list[int], int]:
        """What is left of the lane's anchored continuation, if it fits the tokens committed since its anchor."""
        length, start = int(arguments.copy_length[lane]), int(arguments.copy_position[lane])
        require(0 <= length <= COPY_TOKENS, "a continuation is too long")
        tokens = arguments.copy_tokens[lane, :length].tolist()
        known = len(held.prefix) - start
        fits = 0 <= known < length and known <= RECENT_TOKENS
        fits = fits and held.prefix[start - 1] == arguments.copy_before[lane] and held.prefix[start:] == tokens[:known]
        require(not length or known >= 0, "a continuation that begins after the pending token was offered")
        return (tokens[known:], int(arguments.copy_source[lane])) if fits else ([], 0)

    def _emit(self, pair: Pair, held: Held, sampled: list[int], drafts: list[int], source: int, row: int = -1) -> None:
        """Clip at a stop and at the budget, move the tail, write the record."""
        assert pair.graph is not None
        self._spent[held.request][pair.graph.kind == "speculative"] += 1
        crossed = False
        tokens: list[int] = []
        for token in sampled[: held.max_tokens - held.generated]:
            tokens.append(token)
            if token in held.stops:
                held.terminal = Terminal.STOP
                break
        if held.pending is not None:
            crossed = self._consume(held, [held.pending, *tokens[:-1]], row)
        self._write_logprobs(pair, held, tokens)
        held.pending = tokens[-1]
        held.generated += len(tokens)
        if held.terminal == Terminal.LIVE and held.generated == held.max_tokens:
            held.terminal = Terminal.LENGTH
        self._write_record(pair, held, tokens, len(sampled) - 1, drafts, source)
        if crossed:
            pair.completion.records[self._slot(held), Field.FLAGS] |= Flag.BOUNDARY

    def _emit_nothing(self, pair: Pair, held: Held) -> None:
        self._write_record(pair, held, [], 0, [], 0)

    def _slot(self, held: Held) -> int:
        return next(slot for slot, other in self.held.items() if other is held)

    def _write_logprobs(self, pair: Pair, held: Held, tokens: list[int]) -> None:
        slot = self._slot(held)
        for row, token in enumerate(tokens[: max(0, held.logprobs + 1) and len(tokens)]):
            pair.completion.logprob_ids[slot, row] = [token, *range(self._extent.logprobs)]
            pair.completion.logprobs[slot, row] = [-float(held.generated + row), *range(self._extent.logprobs)]

    def _write_record(
        self, pair: Pair, held: Held, tokens: list[int], accepted: int, drafts: list[int], source: int
    ) -> None:
        assert pair.graph is not None
        slot = self._slot(held)
        record = pair.completion.records[slot]
        record[:] = 0
        record[RECORD_FIELDS:] = -1
        record[RECORD_FIELDS : RECORD_FIELDS + len(tokens)] = tokens
        values = {
            Field.REQUEST_ID: held.request,
            Field.GENERATION: held.generation,
            Field.CONSUMED: len(held.consumed),
            Field.GENERATED: held.generated,
            Field.TERMINAL: held.terminal,
            Field.EMITTED: len(tokens),
            Field.OFFERED: len(drafts),
            Field.ACCEPTED: min(accepted, len(tokens)),
            Field.SOURCES: sum(source << 2 * depth for depth in range(len(drafts))),
            Field.WIDTH: pair.graph.token_capacity if pair.graph.kind == "speculative" else 1,
            Field.GRAPH: pair.graph.id,
            Field.ROUND: held.rounds,
        }
        for name, value in values.items():
            record[name] = value


SOURCES = {Source.HISTORY: "history", Source.CONTEXT: "context"}
