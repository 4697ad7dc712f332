"""What runs next: admission in order of arrival, prompt chunks in turns with rounds, preemption where pages run out."""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from flare.contract.manifest import Extent
from flare.errors import CapacityError
from flare.runtime.catalog import Catalog
from flare.runtime.cohorts import Cohorts
from flare.runtime.copies import Copies
from flare.runtime.launches import Launch
from flare.runtime.memory.boundaries import settle_boundary
from flare.runtime.memory.memory import Memory, pages_for
from flare.runtime.memory.pages import Pages
from flare.runtime.memory.radix import NONE
from flare.runtime.memory.slots import Slots
from flare.runtime.pipeline import Flight
from flare.runtime.policy import Policy
from flare.runtime.prompts import Prompts
from flare.runtime.requests import Request, State


class Scheduler:
    """Decides each launch, and which request holds what.

    A request is admitted when a slot and pages for its prompt and two rounds are free; the first in line is never
    overtaken. It grows as it runs: where pages run out, cached prefixes go first, then the youngest request is parked
    and takes its old place in the line. The oldest is never parked for another and can always be served alone, so
    everything ends.
    """

    def __init__(
        self, catalog: Catalog, extent: Extent, copies: Copies, policy: Policy, prefix_cache: bool = False
    ) -> None:
        self.memory = Memory(extent, prefix_cache and catalog.restore is not None, catalog.learned)
        self.preemptions = 0
        self._catalog = catalog
        self._copies = copies
        self._policy = policy
        self._prompts = Prompts(catalog, self.memory)
        self._cohorts = Cohorts(catalog, extent, copies, policy, self.memory)
        self._extent = extent
        self._waiting: deque[Request] = deque()  # by `order`
        self._prefilling: deque[Request] = deque()
        self._running: list[Request] = []  # least recently served first
        self._ending: deque[Request] = deque()  # with a row for the snapshot of their end
        self._arrivals = 0
        self._refused_at = (-1, -1)  # the request that did not fit, and the releases there had been
        self._chunk_was_last = False

    @property
    def pages(self) -> Pages:
        return self.memory.pages

    @property
    def slots(self) -> Slots:
        return self.memory.slots

    @property
    def waiting(self) -> int:
        """Requests that hold nothing yet, or nothing any more."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold a slot and will be named again."""
        return len(self._prefilling) + len(self._running)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError: it could not be served even alone.
        """
        needed = pages_for(request)
        if needed > self.pages.total:
            asked = f"A prompt of {request.prompt_tokens} tokens with max_tokens={request.policy.max_tokens}"
            raise CapacityError(
                f"{asked} needs {needed} pages of this core's {self.pages.total}: "
                "lower sampling.max_tokens or raise preparation.memory_bytes."
            )
        self._arrivals += 1
        request.order = self._arrivals
        self._waiting.append(request)

    def next(self) -> Launch | None:
        """The next launch, or None when nothing can start before something in flight settles; it must be submitted.

        Chunks and rounds alternate while both are ready, so neither a long prompt nor a busy cohort holds up the other.
        """
        for request in [*self._running, *self._prefilling]:
            if request.parking and not request.queued.launches:
                self._park(request)
        self._admit()
        if self._ending:
            return self._end_snapshot(self._ending.popleft())
        if self._chunk_was_last or not self._prefilling:
            launch = self._round()
            if launch is not None:
                return launch
        return self._chunk()

    def landed(self, launch: Launch, sound: bool = True) -> None:
        """A launch has settled and its frame is released: publish what it kept, let go of what it named.

        Args:
            sound: False where nobody knows what it did; then nothing it could have written is published.
        """
        launch.land()
        if launch.graph.kind == "restore":
            self.memory.drop_hit(launch.requests[0])
        elif launch.is_round:
            for lane, request in enumerate(launch.requests):
                if launch.row(lane) != NONE:
                    self.memory.snapshots.release(launch.row(lane))
                if not sound or request.error is not None:
                    request.trail.crossed = False  # the launch named the row, and what it did to it is not known
                settle_boundary(self.memory, request)
        elif launch.is_chunk or launch.graph.kind == "snapshot":
            self._publish(launch, sound)

    def drop(self, request: Request) -> None:
        """Never name the request in a launch again; it keeps what it holds."""
        for queue in (self._waiting, self._prefilling, self._running, self._ending):
            if request in queue:
                queue.remove(request)
        if request.state is not State.WAITING:
            request.state = State.LEAVING

    def finish(self, request: Request) -> None:
        """The device has ended the request: what it consumed is kept, by a snapshot launch where rows are needed."""
        self.drop(request)
        if request.host_ended or self.memory.prefixes is None or self._catalog.snapshot is None:
            return
        if request.generated_tokens > 1 and self._extent.snapshots:
            request.trail.last_row = self.memory.take_snapshot()
            if request.trail.last_row != NONE:
                self._ending.append(request)

    def named(self, request: Request) -> bool:
        """Whether a launch names the request or will."""
        return request.queued.launches > 0 or request in self._ending

    def retire(self, request: Request) -> None:
        """Free everything the request holds; no queued graph may name it."""
        self.drop(request)
        if request.state is not State.WAITING:
            self._keep_pages(request)
            self.memory.release(request)
        self._copies.close(request)
        self._policy.forget(request.id)
        request.parking = False
        request.state = State.FINISHED

    def check(self, holders: Sequence[Request], in_flight: Sequence[Flight]) -> None:
        """Raise AssertionError unless queues, memory and the launches in flight agree.

        Args:
            holders: every request that is not retired.
        """
        places = [*self._waiting, *self._prefilling, *self._running]
        assert len(set(map(id, places))) == len(places), "a request stands in two queues"
        assert [request.order for request in self._waiting] == sorted(request.order for request in self._waiting)
        rows: list[int] = []
        for launch, *_, pages in in_flight:
            if launch.graph.kind != "restore":  # there the request's hit refers to the row
                rows += [row for row in launch.rows if row != NONE]
            for request, named in zip(launch.requests, pages, strict=True):
                assert request.state not in (State.WAITING, State.FINISHED), "freed while a launch names it"
                assert request.pages[: len(named)] == named, "a page changed hands while a launch names it"
        for request in holders:
            named_by = sum(request in flight.launch.requests for flight in in_flight)
            assert request.queued.launches == named_by, "launches are miscounted"
            assert not request.serial or request.queued.samplings <= 1, "a barrier is broken"
        self.memory.check([request for request in holders if request.state is not State.WAITING], rows)

    def _admit(self) -> None:
        while self._waiting and self.slots.free:
            request = self._waiting[0]
            if self._refused_at == (request.order, self.pages.releases):
                return
            growing = sum(len(other.pages) < pages_for(other) for other in (*self._running, *self._prefilling))
            if not self.memory.admit(request, growing):
                self._refused_at = (request.order, self.pages.releases)
                return
            self._waiting.popleft()
            request.state = State.PREFILLING
            if not request.preemptions:
                self._copies.open(request)
            self._prefilling.append(request)

    def _chunk(self) -> Launch | None:
        """Bring the oldest prefilling request one launch further; behind its last one it may take part in rounds."""
        request = next((request for request in self._prefilling if not request.parking), None)
        if request is None:
            return None
        launch = self._prompts.launch(request)
        self._chunk_was_last = launch.is_chunk
        done = request.prefilled_tokens == request.unsampled_tokens
        if done and (launch.is_chunk or launch.graph.kind == "restore"):
            self._prefilling.remove(request)
            request.state = State.RUNNING
            self._running.append(request)
        return launch

    def _round(self) -> Launch | None:
        cohort = self._cohorts.ready(self._running)
        for request in sorted(cohort, key=attrgetter("order")):
            if request.state is not State.RUNNING or request.parking or not self._reserve(request):
                cohort.remove(request)
        if not cohort:
            return None
        launch = self._cohorts.round(cohort)
        self._chunk_was_last = False
        self._running = [request for request in self._running if request not in launch.requests] + [*launch.requests]
        return launch

    def _reserve(self, request: Request) -> bool:
        """Have pages for one more round at its longest; where they are held, the youngest request makes room."""
        longest = len(request.tokens) - 1 + request.queued.tokens + self._extent.width
        while not self.memory.extend(request, longest):
            if self.slots.total - self.slots.free > self.running:
                return False  # one that has ended is about to give its pages back
            victim = max((*self._running, *self._prefilling), key=lambda held: held.order)
            if victim.queued.launches:
                victim.parking = True
                return False
            self._park(victim)
            if victim is request:
                return False
        return True

    def _park(self, request: Request) -> None:
        """Take back slot and pages; tokens, counters and the place in line stay."""
        self._keep_pages(request)
        self.drop(request)
        self.memory.release(request)
        self.preemptions += 1
        request.preemptions += 1
        request.parking = request.initialised = False
        request.prefilled_tokens = 0
        request.state = State.WAITING
        place = next((i for i, other in enumerate(self._waiting) if other.order > request.order), len(self._waiting))
        self._waiting.insert(place, request)

    def _keep_pages(self, request: Request) -> None:
        """Where pages alone can be begun from, keep those of the settled tokens."""
        if request.generated_tokens and request.error is None and not request.lost:
            self.memory.publish(request, len(request.tokens) - 1, NONE)

    def _end_snapshot(self, request: Request) -> Launch:
        """Keep the state a request ended in: all its tokens but the last, which nothing consumed."""
        assert self._catalog.snapshot is not None
        row, request.trail.last_row = request.trail.last_row, NONE
        return Launch(self._catalog.snapshot, (request,), len(request.tokens) - 1, rows=(row,))

    def _publish(self, launch: Launch, sound: bool) -> None:
        request, row = launch.requests[0], launch.row(0)
        if sound and request.error is None and not (request.cancelled or request.lost):
            keep = self.memory.publish_chunk if launch.is_chunk else self.memory.publish
            keep(request, launch.start + launch.count, row)
        elif row != NONE:
            self.memory.snapshots.release(row)
