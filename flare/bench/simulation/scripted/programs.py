"""What each graph does to the request table, the pages and the snapshots, as `flare/rounds` specifies it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flare.bench.simulation.scripted.faults import require
from flare.bench.simulation.scripted.storage import Snapshot, Storage
from flare.bench.simulation.scripted.table import ORDINARY, PROPOSAL, VERIFY, Row, copy_of
from flare.bench.simulation.scripted.truth import Truth
from flare.contract.frames import Arguments, HostArray, Scalar, Source, Terminal
from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph


class Lane(NamedTuple):
    """One live lane of a running graph; `table` is its row of page ids, `boundary` its snapshot row or −1."""

    place: int
    row: Row
    table: list[int]
    boundary: int


@dataclass(slots=True)
class Outcome:
    """What a lane's record will say.

    Attributes:
        offered: drafts; sources: of each of them; accepted: drafts among the emitted tokens.
        wrote_boundary: the snapshot row was written on the way.
    """

    tokens: Sequence[int] = ()
    offered: int = 0
    accepted: int = 0
    sources: Sequence[int] = ()
    wrote_boundary: bool = False


class Programs:
    """The graphs of one device.

    Args:
        learned: the drafter is learned: it proposes for itself and keeps pairs in the pages.
        checked: read every page of a committed prefix back before it is used.
    """

    def __init__(self, truth: Truth, storage: Storage, learned: bool, paged: bool, checked: bool) -> None:
        self._truth, self._storage = truth, storage
        self._learned, self._paged, self._checked = learned, paged, checked

    def chunk(self, graph: ExecutionGraph, arguments: Arguments[HostArray], lane: Lane) -> Outcome:
        """Consume some of the tokens that `init` brought; the chunk that ends a new prompt samples."""
        row, begin = lane.row, lane.row.consumed
        scalars: list[int] = arguments.scalars.tolist()
        count = scalars[Scalar.TOKEN_COUNT]
        end = begin + count
        known = len(row.tokens) - (row.generated > 0)
        require(1 <= count <= graph.token_capacity, "a chunk exceeds its graph")
        require(end <= known, "a chunk reaches beyond what is known")
        require(arguments.tokens[:count].tolist() == row.tokens[begin:end], "a chunk is not what comes next")
        self._read_back(lane, graph)
        self._consume(lane, begin, end)
        if self._absorbs(graph):
            self._storage.write_pairs(lane.table, row.chain, max(0, begin - 1), end - 1)
        if lane.boundary >= 0:
            self._storage.snapshots[lane.boundary] = Snapshot(row.state, end)
        samples = graph.kind == "prefill" or (graph.kind == "scored_prefill" and bool(scalars[Scalar.SAMPLE]))
        last = row.generated == 0 and end == known
        require(samples == last, "the chunk that ends a new prompt samples, and no other does")
        return self._sample_first(row) if samples else Outcome()

    def restore(self, arguments: Arguments[HostArray], lane: Lane) -> Outcome:
        """A prefix from its snapshot row, or from pages alone; a full hit samples from the saved output."""
        row, scalars = lane.row, arguments.scalars.tolist()
        consumed, sample = scalars[Scalar.CONSUMED], bool(scalars[Scalar.SAMPLE])
        known = len(row.tokens) - (row.generated > 0)
        require(row.consumed == 0 and 0 < consumed <= known, "a restored prefix is not one of the request")
        require(not sample or (consumed == known and not row.generated), "only a whole new prompt is sampled from")
        require(sample or consumed < known or row.generated > 0, "a restored prompt leaves nothing to sample from")
        if lane.boundary < 0:
            require(self._paged and consumed % PAGE_TOKENS == 0 and not sample, "a prefix without a snapshot row")
            row.state = row.chain[consumed]
        else:
            found = self._storage.snapshots.get(lane.boundary)
            require(found is not None, f"snapshot row {lane.boundary} is restored and holds nothing")
            require(found == Snapshot(row.chain[consumed], consumed), f"snapshot row {lane.boundary} is another prefix")
            row.state = row.chain[consumed]
        source, target = scalars[Scalar.COPY_FROM], scalars[Scalar.COPY_TO]
        null_page = self._storage.null_page
        require((source == null_page) == (target == null_page), "a page is copied from or to nowhere")
        require(target == null_page or lane.table[(consumed - 1) // PAGE_TOKENS] == target, "the copy is not used")
        if target != null_page:
            self._storage.copy(source, target)
        row.consumed = row.restored = consumed
        self._read_back(lane, None)
        return self._sample_first(row) if sample else Outcome()

    def snapshot(self, lane: Lane) -> Outcome:
        """The exact endpoint of a request that no other graph moves."""
        require(lane.boundary >= 0, "a snapshot without a row")
        self._storage.snapshots[lane.boundary] = Snapshot(lane.row.state, lane.row.consumed)
        return Outcome()

    def round(self, graph: ExecutionGraph, arguments: Arguments[HostArray], lane: Lane) -> Outcome:
        """Draft, verify, accept, commit."""
        row, begin = lane.row, lane.row.consumed
        require(row.generated > 0 and begin == len(row.tokens) - 1, "a round without a pending token after its prefix")
        self._read_back(lane, graph)
        drafts, sources = self._offer(graph, arguments, lane)
        writes = begin + len(drafts)
        require(
            lane.table[writes // PAGE_TOKENS] < self._storage.null_page,
            f"position {writes} may be written, but has no page",
        )
        sampled = self._verify(row, drafts, forbidden_ids(arguments, lane.place, self._truth.vocab))
        tokens = clipped(sampled, row)
        row.append(tokens)
        self._consume(lane, begin, begin + len(tokens))
        if self._absorbs(graph):
            self._storage.write_pairs(lane.table, row.chain, max(0, begin - 1), row.consumed - 1)
        for domain in (PROPOSAL, VERIFY) if graph.kind == "speculative" else (ORDINARY,):
            row.events[domain] += 1
        accepted = min(len(sampled) - 1, len(tokens))
        return Outcome(tokens, len(drafts), accepted, sources, self._write_boundary(lane, begin))

    def lose(self, lane: Lane, begin: int, wrote_row: bool) -> None:
        """A failed graph leaves nothing of use: not the slot, nor what it wrote to pages and to a snapshot row."""
        row = lane.row
        row.lost = True
        self._storage.garble(lane.table, begin, row.consumed)
        if wrote_row:
            self._storage.snapshots.pop(lane.boundary, None)

    def _write_boundary(self, lane: Lane, begin: int) -> bool:
        """The state at the one multiple of 64 in (begin, consumed], where there is one and a row to write."""
        boundary = lane.row.consumed // PAGE_TOKENS * PAGE_TOKENS
        if lane.boundary < 0 or boundary <= begin:
            return False
        self._storage.snapshots[lane.boundary] = Snapshot(lane.row.chain[boundary], boundary)
        return True

    def _sample_first(self, row: Row) -> Outcome:
        token = self._truth.allowed(row.chain[-1], row.tokens[-1], row.banned)
        row.append([token])
        row.events[ORDINARY] += 1
        row.terminal = terminal_after([token], row)
        return Outcome((token,))

    def _consume(self, lane: Lane, begin: int, end: int) -> None:
        row = lane.row
        require(row.state == row.chain[begin], "the slot's state is not that of its prefix")
        self._storage.write(lane.table, row.chain, begin, end)
        row.consumed, row.state = end, row.chain[end]

    def _read_back(self, lane: Lane, graph: ExecutionGraph | None) -> None:
        if not self._checked:
            return
        row = lane.row
        self._storage.read(lane.table, row.chain, row.consumed)
        if graph is not None and self._absorbs(graph):
            self._storage.read_pairs(lane.table, row.chain, row.consumed - 1)

    def _absorbs(self, graph: ExecutionGraph) -> bool:
        return self._learned and graph.speculation_enabled is not False

    def _offer(self, graph: ExecutionGraph, arguments: Arguments[HostArray], lane: Lane) -> tuple[list[int], list[int]]:
        """Drafts and their sources: copies where they fit, learned drafts where these agree with the copies."""
        depth = graph.token_capacity - 1
        if graph.kind == "decode" or depth == 0:
            return [], []
        row, index = lane.row, lane.place
        ceiling = int(arguments.ceilings[index])
        copy = copy_of(arguments, index, int(arguments.copy_length[index]))
        drafts = row.remaining_copy(copy)[:depth]
        sources = [copy.source] * len(drafts)
        if self._learned:
            own = self._truth.proposal(row.chain[-1], row.tokens[-1], depth)
            if own[: len(drafts)] == drafts:
                sources += [int(Source.LEARNED)] * (depth - len(drafts))
                drafts += own[len(drafts) :]
        count = max(0, min(len(drafts), ceiling, row.max_tokens - row.generated - 1))
        return drafts[:count], sources[:count]

    def _verify(self, row: Row, drafts: Sequence[int], forbidden: Sequence[frozenset[int]] | None) -> list[int]:
        """The accepted drafts and the token after them."""
        prefix, last, sampled = row.chain[-1], row.tokens[-1], []
        for index in range(len(drafts) + 1):
            banned = row.stops if row.generated + index < row.min_tokens else frozenset[int]()
            if forbidden is not None:
                banned |= forbidden[index]
            token = self._truth.allowed(prefix, last, banned) if banned else self._truth.next(prefix, last)
            sampled.append(token)
            if index == len(drafts) or token != drafts[index]:
                break
            prefix, last = hash((prefix, token)), token
        return sampled


def forbidden_ids(arguments: Arguments[HostArray], lane: int, vocab: int) -> list[frozenset[int]] | None:
    """Ids that each row's mask forbids; None where the lane is not masked."""
    if not arguments.masked[lane]:
        return None
    masks = arguments.masks[lane].tolist()
    return [frozenset(i for i in range(vocab) if not words[i // 32] >> i % 32 & 1) for words in masks]


def clipped(sampled: Sequence[int], row: Row) -> list[int]:
    """The sampled tokens up to the first stop and the budget; sets how the row stands after them."""
    kept: list[int] = []
    for token in sampled[: row.max_tokens - row.generated]:
        kept.append(token)
        if token in row.stops:
            break
    if kept[-1] in row.stops:
        row.terminal = Terminal.STOP
    elif row.generated + len(kept) == row.max_tokens:
        row.terminal = Terminal.LENGTH
    return kept


def terminal_after(tokens: Sequence[int], row: Row) -> int:
    """How a row stands after its first token was counted."""
    if tokens[-1] in row.stops:
        return Terminal.STOP
    return Terminal.LENGTH if row.generated >= row.max_tokens else Terminal.LIVE
