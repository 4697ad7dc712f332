"""What must hold after every step: nothing leaked, nothing given away that a queued launch names."""

from collections import Counter
from collections.abc import Sequence

from flare.bench.simulation.checks.published import Published
from flare.bench.simulation.scripted import SimulatedDevice
from flare.bench.simulation.scripted.faults import require
from flare.runtime.engine import Engine
from flare.runtime.memory.radix import NONE
from flare.runtime.requests import Request, State

THOROUGH = 16  # of so many steps one also runs the engine's own check, which walks everything


class Invariants:
    """Recounts an engine's memory from what its requests and cached prefixes hold, and tells the device what is free.

    What the device is told it may never read again: a launch that still names it would be found.
    """

    def __init__(self, engine: Engine, device: SimulatedDevice) -> None:
        self._engine, self._device = engine, device
        self._memory = engine.scheduler.memory
        self._extent = device.manifest.extent
        self._pages_used = [False] * self._memory.pages.total
        self._rows_used = [False] * self._memory.snapshots.total
        self._steps = 0
        prefixes = self._memory.prefixes
        self._published = Published(prefixes, device) if prefixes is not None else None

    def check(self) -> None:
        """Raise `AssertionError` on the first count that does not add up."""
        holders = [request for request in self._engine._live.values() if request.state is not State.WAITING]
        self._check_queued(holders)
        self._check_pages(holders)
        if self._published is not None:
            self._published.check()
        self._poison()
        self._steps += 1
        if self._steps % THOROUGH == 0:
            self._engine.check()

    def check_drained(self) -> None:
        """Only cached prefixes are held, and without them nothing is."""
        self.check()
        self._engine.check()
        memory = self._memory
        require(self._engine.idle, "requests are left after the drain")
        while memory.prefixes is not None and memory.prefixes.evict():
            pass
        for pool, name in ((memory.slots, "slot"), (memory.pages, "page"), (memory.snapshots, "snapshot")):
            require(pool.free == pool.total, f"a {name} leaked")

    def _check_queued(self, holders: Sequence[Request]) -> None:
        slots = self._memory.slots
        held = [request.slot for request in holders]
        require(len(set(held)) == len(held), "two requests hold one slot")
        require(slots.free + len(held) == slots.total, "slots held and free do not add up")
        for flight in self._engine._in_flight:
            for request in flight.launch.requests:
                require(request.state is not State.FINISHED, f"request {request.id} was freed while a launch names it")

    def _check_pages(self, holders: Sequence[Request]) -> None:
        pages, prefixes = self._memory.pages, self._memory.prefixes
        expected = Counter(page for request in holders for page in request.pages)
        expected.update(hit.copied for request in holders if (hit := request.trail.hit) and hit.copied != NONE)
        if prefixes is not None:
            expected.update(dict(enumerate(prefixes.held.tolist())))
        for page, references in enumerate(pages.counts().tolist()):
            require(references == expected[page], f"page {page} has {references} references, {expected[page]} holders")
            self._pages_used[page] |= references > 0
        require(pages.free == sum(expected[page] == 0 for page in range(pages.total)), "free pages are miscounted")

    def _poison(self) -> None:
        """Pages and snapshot rows that have been used and that nobody refers to now."""
        pages, snapshots = self._memory.pages, self._memory.snapshots
        freed = [page for page, used in enumerate(self._pages_used) if used and not pages.references(page)]
        rows = [row for row, used in enumerate(self._rows_used) if used and not snapshots.references(row)]
        self._rows_used = [snapshots.references(row) > 0 for row in range(snapshots.total)]
        if freed or rows:
            for page in freed:
                self._pages_used[page] = False
            self._device.poison(freed, [self._extent.snapshot_row(row) for row in rows])
