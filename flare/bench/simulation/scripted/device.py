"""The scripted device: frames executed in order, as late as the clock allows, every use held against the contract."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flare.bench.simulation.scripted.clock import Clock, Costs
from flare.bench.simulation.scripted.faults import Armed, Failure, require
from flare.bench.simulation.scripted.programs import Lane, Outcome, Programs
from flare.bench.simulation.scripted.records import RecordWriter
from flare.bench.simulation.scripted.storage import Storage
from flare.bench.simulation.scripted.table import Row, Table
from flare.bench.simulation.scripted.truth import Truth
from flare.contract.device import FRAMES
from flare.contract.frames import Arguments, Completion, HostArray, argument_arrays, host_completion, layout, views
from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph, Extent, Manifest

POLL_S = 2e-5  # a poll that finds nothing takes this long
ROUNDS = ("decode", "speculative")
CHUNKS = ("prefill", "resume", "scored_prefill")


class ReplayFailed(RuntimeError):  # noqa: N818  what a backend raises, not a sentence for a user
    """A launch failed on the device."""


@dataclass
class Frame:
    """One pair of buffers and where it stands in its cycle.

    Attributes:
        submitted: the argument bytes as they were at submission; they may not change before the release.
        slots: named lanes in order; requests: who held them when the graph ran.
    """

    buffer: NDArray[np.uint8]
    arguments: Arguments[HostArray]
    completion: Completion[HostArray]
    graph: ExecutionGraph | None = None
    slots: tuple[int, ...] = ()
    submitted: bytes = b""
    done_s: float = 0.0
    executed: bool = False
    armed: Armed = field(default_factory=Armed)


class SimulatedDevice:
    """A `Device` over scripted truth.

    Args:
        costs: seconds of each replay on `clock`, the one the runtime should read too.
        checked: hold every use against the contract; without it only the arithmetic of a round is left.

    Attributes:
        counts: executed graphs by kind, and what happened in them; see the simulation's report.
        armed: what the next submitted round will do wrong.
        lost: ids of the requests whose state a failure destroyed; restored: tokens each request was first given back.
    """

    def __init__(self, manifest: Manifest, truth: Truth, costs: Costs, clock: Clock, checked: bool = True) -> None:
        extent = manifest.extent
        self.manifest, self.truth, self.clock = manifest, truth, clock
        self.counts: Counter[str] = Counter()
        self.armed = Armed()
        self.lost: set[int] = set()
        self.restored: dict[int, int] = {}
        self.storage = Storage(extent.pages)
        self.table = Table(truth)
        self._costs, self._checked = costs, checked
        learned = any(graph.draft_source in ("mtp", "block", "mtp+copy") for graph in manifest.graphs)
        self._programs = Programs(truth, self.storage, learned, extent.paged, checked)
        self._frames = [_frame(extent) for _ in range(FRAMES)]
        self._queue: deque[Frame] = deque()
        self._records = RecordWriter(extent)
        self._attached = False
        self._busy_until_s = 0.0
        self._submissions = 0

    @property
    def rounds(self) -> int:
        """Executed rounds."""
        return self.counts["decode"] + self.counts["speculative"]

    @property
    def launches(self) -> int:
        """Submitted graphs."""
        return self._submissions

    @property
    def queued_rounds(self) -> int:
        """Rounds submitted and not released."""
        return sum(frame.graph is not None and frame.graph.kind in ROUNDS for frame in self._frames)

    @property
    def queued_frames(self) -> int:
        """Frames submitted and not released."""
        return sum(frame.graph is not None for frame in self._frames)

    def naming(self, slot: int) -> int:
        """Unreleased frames that name a slot."""
        return sum(frame.graph is not None and slot in frame.slots for frame in self._frames)

    def poison(self, pages: Iterable[int], rows: Iterable[int]) -> None:
        """Make what the host has freed unreadable."""
        self.storage.poison(pages, rows)

    def attach(self) -> None:
        require(not self._attached, "two engines share the frames")
        self._attached = True

    def detach(self) -> None:
        require(not self.queued_frames, "the frames are given back while one is in flight")
        self._attached = False

    def arguments(self, frame: int) -> Arguments[HostArray]:
        require(self._frames[frame].graph is None, "arguments of a frame that is not released")
        return self._frames[frame].arguments

    def submit(self, graph: int, frame: int) -> None:
        target = self._frames[frame]
        require(target.graph is None, "a frame is submitted before its release")
        target.graph = self.manifest.graphs[graph]
        target.executed = False
        target.armed = self.armed.take()
        lanes: list[int] = target.arguments.lanes.tolist()
        target.slots = tuple(slot for slot in lanes if slot != self.manifest.extent.null_slot)
        if self._checked:
            self._check_submission(target, lanes)
            target.submitted = target.buffer.tobytes()
        cost = self._costs(target.graph, len(target.slots)) + target.armed.delay_s
        self._busy_until_s = max(self._busy_until_s, self.clock.now_s) + cost
        target.done_s = self._busy_until_s
        self._submissions += 1
        self._queue.append(target)

    def poll(self, frame: int) -> bool:
        target = self._submitted(frame)
        if self.clock.now_s < target.done_s:
            self.clock.advance(POLL_S)
        if self.clock.now_s < target.done_s:
            return False
        self._run_until(target)
        return True

    def collect(self, frame: int) -> Completion[HostArray]:
        target = self._submitted(frame)
        self.clock.reach(target.done_s)
        self._run_until(target)
        if target.armed.failure is Failure.REPLAY:
            self.counts[f"failed replays with {self.queued_rounds} rounds queued"] += 1
            raise ReplayFailed("a replay failed, as it was told to")
        return target.completion

    def release(self, frame: int) -> None:
        target = self._submitted(frame)
        require(target.executed, "a frame is released while it runs")
        target.graph = None
        if self._checked:
            target.completion.records.fill(-77)  # what the host still reads after this must not make sense

    def _submitted(self, frame: int) -> Frame:
        target = self._frames[frame]
        require(target.graph is not None, "the frame was not submitted")
        return target

    def _run_until(self, target: Frame) -> None:
        while not target.executed:
            self._execute(self._queue.popleft())

    def _check_submission(self, frame: Frame, lanes: list[int]) -> None:
        graph, extent, slots = frame.graph, self.manifest.extent, frame.slots
        assert graph is not None
        require(1 <= len(slots) <= graph.batch_capacity, "no lane is named, or more than the graph has")
        require(len(set(slots)) == len(slots), "two lanes name one slot")
        require(tuple(lanes[: len(slots)]) == slots, "padded lanes do not come last")
        require(all(0 <= slot < extent.slots for slot in slots), "a lane names no slot")
        rows = frame.arguments.boundary_slots.tolist()
        named = [row for row in rows[: len(slots)] if row >= 0]
        require(len(set(named)) == len(named), "two lanes name one snapshot row")
        require(all(extent.slots < row <= extent.slots + extent.snapshots for row in named), "no such snapshot row")
        require(all(row < 0 for row in rows[len(slots) :]), "a padded lane names a snapshot row")
        if graph.kind == "init":
            others = (other for other in self._queue if other is not frame)
            require(not any(slots[0] in other.slots for other in others), "a slot is given away while a frame names it")

    def _execute(self, frame: Frame) -> None:
        graph, arguments = frame.graph, frame.arguments
        assert graph is not None
        frame.executed = True
        self.counts[graph.kind] += 1
        if self._checked:
            require(frame.buffer.tobytes() == frame.submitted, "arguments were rewritten before the release")
        if graph.kind == "init":
            row = self.table.admit(arguments, frame.slots[0], int(arguments.generations[0]))
            self._records.write(frame.completion, graph, row, Outcome())
            self._fail(frame, Lane(0, row, [], -1), 0)
            return
        tables = arguments.page_tables[: len(frame.slots)].tolist()
        generations = arguments.generations.tolist()
        boundaries = arguments.boundary_slots.tolist()
        for index, slot in enumerate(frame.slots):
            row = self.table.rows.get(slot)
            require(row is not None and row.generation == generations[index], "a lane names an outdated generation")
            assert row is not None
            lane = Lane(index, row, tables[index], boundaries[index])
            begin, alive = row.consumed, row.live
            outcome = self._run(graph, frame, lane)
            self._records.write(frame.completion, graph, row, outcome)
            if graph.kind == "restore":  # it wrote nothing that others read
                begin, lane = row.consumed, lane._replace(boundary=-1)
            if alive:
                self._fail(frame, lane, begin)
        if graph.kind in ROUNDS:
            self._count_round(graph, len(tables))

    def _run(self, graph: ExecutionGraph, frame: Frame, lane: Lane) -> Outcome:
        """One lane; one that has ended or was lost makes no transition, but a snapshot of an ended one can be kept."""
        arguments, programs = frame.arguments, self._programs
        if lane.row.lost or not (lane.row.live or graph.kind == "snapshot"):
            self.counts["dead lanes"] += 1
            return Outcome()
        if graph.kind in CHUNKS:
            self.counts["chunk snapshots"] += lane.boundary >= 0
            outcome = programs.chunk(graph, arguments, lane)
            if graph.kind == "scored_prefill":
                self._records.write_scores(frame.completion, arguments, lane.row)
            return outcome
        if graph.kind == "restore":
            outcome = programs.restore(arguments, lane)
            self._count_restored(lane.row, bool(outcome.tokens))
            return outcome
        if graph.kind == "snapshot":
            return programs.snapshot(lane)
        outcome = programs.round(graph, arguments, lane)
        self.counts["boundaries written"] += outcome.wrote_boundary
        self.counts["offered"] += outcome.offered
        self.counts["accepted"] += outcome.accepted
        self.counts["emitted"] += len(outcome.tokens)
        return outcome

    def _fail(self, frame: Frame, lane: Lane, begin: int) -> None:
        """What the frame was armed with: a failed replay loses every lane, the other failures strike the first.

        Args:
            begin: tokens consumed before the graph ran; what it wrote after them means nothing.
        """
        failure, graph = frame.armed.failure, frame.graph
        assert graph is not None
        computes = graph.kind in ROUNDS or graph.kind in CHUNKS
        if failure is Failure.REPLAY:
            self._lose(lane, begin, wrote_row=True)  # nobody knows how far it went
            self.counts["lanes lost in a replay"] += 1
        elif lane.place == 0 and computes and failure is Failure.NOT_FINITE:
            crossed = lane.row.consumed // PAGE_TOKENS > begin // PAGE_TOKENS
            self._lose(lane, begin, wrote_row=crossed or graph.kind in CHUNKS)
            self.counts["lanes not finite"] += 1
            self._records.mark_fault(frame.completion, lane.row)
        elif lane.place == 0 and failure is Failure.STALE:
            self._records.mark_stale(frame.completion, lane.row)

    def _lose(self, lane: Lane, begin: int, wrote_row: bool) -> None:
        self.lost.add(lane.row.request)
        self._programs.lose(lane, begin, wrote_row)

    def _count_round(self, graph: ExecutionGraph, lanes: int) -> None:
        self.counts["wide rounds"] += graph.token_capacity > 1
        self.counts["lanes"] += lanes
        self.counts["rounds behind a round"] += self.queued_rounds > 1

    def _count_restored(self, row: Row, full: bool) -> None:
        self.restored.setdefault(row.request, row.restored)
        whole = row.restored % PAGE_TOKENS == 0
        self.counts["full hits" if full else "boundary hits" if whole else "branch hits"] += 1


def _frame(extent: Extent) -> Frame:
    regions, total_bytes = layout(argument_arrays(extent))
    buffer = np.zeros(total_bytes, np.uint8)
    return Frame(buffer, Arguments(**views(buffer, regions)), host_completion(extent))
