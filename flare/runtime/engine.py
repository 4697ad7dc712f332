"""The engine: text in, text out, over a prepared core. The loop that submits, settles and presents."""

from collections import deque
from collections.abc import Generator, Sequence
from time import perf_counter, sleep
from types import TracebackType
from typing import NamedTuple, Protocol

from flare.config.config import Config
from flare.config.serving import Serving
from flare.contract.device import FRAMES, Device
from flare.contract.vocabulary import Vocabulary
from flare.errors import RequestError
from flare.runtime.catalog import Catalog
from flare.runtime.copies import Copies
from flare.runtime.frames.writing import FrameWriter
from flare.runtime.intake import Intake, Prompt, as_prompts
from flare.runtime.launches import Launch
from flare.runtime.policy import Policy, Prior, RoundOutcome, adaptive, fixed
from flare.runtime.requests import Request
from flare.runtime.results import Completion, Event
from flare.runtime.sampling import Sampling
from flare.runtime.scheduler import Scheduler
from flare.runtime.settling import Addition, lane_outcome, present, present_cancelled, settle

DRAIN_POLL_S = 0.0005


class Core(Protocol):
    """What an engine runs on: `flare.prepare` makes one, tests script one."""

    @property
    def device(self) -> Device: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def config(self) -> Config: ...


class Flight(NamedTuple):
    """A launch in a submitted frame; `alone`: nothing was queued before it, so its time is its own."""

    launch: Launch
    frame: int
    submitted_s: float
    alone: bool


class Engine:
    """Serves requests over a core; use it as a context manager.

    Not thread-safe: one thread at a time may call it. `generate` and `stream` drive the loop themselves; a server calls
    `submit`, then `step` until the handles are finished.
    """

    def __init__(self, core: Core) -> None:
        config, device = core.config, core.device
        extent, serving = device.manifest.extent, config.serving
        catalog = Catalog(device.manifest, speculative=serving.mtp_draft_tokens > 0 or config.preparation.mtp_only)
        self.vocabulary = core.vocabulary
        self.model_name = config.model_name()
        self.policy = policy_of(serving, catalog)
        copies = Copies(serving.history_drafts, serving.context_drafts)
        self.scheduler = Scheduler(catalog, extent, copies, self.policy)
        self._intake = Intake(config, core.vocabulary, extent, catalog)
        self._copies = copies
        self._device = device
        device.attach()
        self._closed = False
        self._writers = [FrameWriter(extent) for _ in range(FRAMES)]
        self._in_flight: deque[Flight] = deque()
        self._live: dict[int, Request] = {}
        self._additions: deque[Addition] = deque()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def idle(self) -> bool:
        """Nothing is queued, running or in flight."""
        return not (self._live or self._in_flight)

    def remember(self, tokens: Sequence[int]) -> None:
        """Extend the shared history by the token ids of a response that this recipe generated under another engine.

        Prompts do not belong here: what was never generated may be searched for, not copied.
        """
        self._copies.remember(tokens)

    def generate(
        self, prompt: Prompt | Sequence[Prompt], sampling: Sampling | None = None
    ) -> Completion | list[Completion]:
        """Complete one prompt, or a list of prompts together.

        Returns:
            One completion for one prompt; a list for a list of prompts or where `sampling.n` asks for several, the
            completions of one prompt next to each other.

        Raises:
            RequestError: a prompt or a wish this core cannot serve; then none of them runs on.
        """
        prompts, single = as_prompts(prompt)
        handles: list[Request] = []
        try:
            for each in prompts:
                handles.extend(self.submit(each, sampling))
            done = self.wait(handles)
        finally:
            self._cancel_all(handles)
        return done[0] if single and len(done) == 1 else done

    def stream(self, prompt: Prompt, sampling: Sampling | None = None) -> Generator[Event]:
        """Events of one request as they come; leaving the iterator early cancels the request.

        Raises:
            RequestError: at the first event, what this core cannot serve.
        """
        handles = self.submit(prompt, sampling)
        try:
            if len(handles) != 1:
                raise RequestError(f"sampling.n={len(handles)} cannot be streamed: stream one completion at a time.")
            request = handles[0]
            while not request.finished:
                self.step()
                yield from request.take_events()
            yield from request.take_events()  # of a request that was ended from elsewhere
            if request.error is not None:
                raise request.error
        finally:
            self._cancel_all(handles)

    def submit(self, prompt: Prompt, sampling: Sampling | None = None) -> tuple[Request, ...]:
        """Queue one prompt: a handle for each of its `sampling.n` completions. Nothing runs before `step`.

        Raises:
            RequestError, CapacityError: what this core cannot serve.
        """
        if self._closed:
            raise RequestError("This engine is closed: open another one over the core.")
        handles = self._intake.requests(prompt, sampling or Sampling())
        for request in handles:
            self.scheduler.add(request)
            self._live[request.id] = request
        return handles

    def wait(self, handles: Sequence[Request]) -> list[Completion]:
        """Step until all handles are finished; an interrupt or error cancels them."""
        try:
            for request in handles:
                while not request.finished:
                    self.step()
        finally:
            self._cancel_all(handles)
        return [_completion_of(request) for request in handles]

    def cancel(self, request: Request) -> None:
        """End a request. What it holds is freed at once, or when the launches that name it have settled."""
        self._present()
        if request.finished or request.cancelled:
            return
        request.cancelled = True
        self.scheduler.drop(request)
        self._retire_unless_named(request)

    def step(self) -> bool:
        """Settle the oldest launch and keep the device fed; returns whether work is left.

        The next launch is queued before the settled one's text is decoded and its events are made.
        """
        self._fill()
        if self._in_flight:
            self._settle_oldest()
            self._fill()
        self._present()
        return not self.idle

    def close(self) -> None:
        """Wait for what the device is doing, cancel what is left, free everything. Idempotent."""
        while self._in_flight:
            flight = self._in_flight[0]
            while not self._device.poll(flight.frame):
                sleep(DRAIN_POLL_S)
            self._release(flight)
        for request in list(self._live.values()):
            request.cancelled = True
            self._retire_unless_named(request)
        if not self._closed:  # by now another engine may have the frames
            self._closed = True
            self._device.detach()

    def _fill(self) -> None:
        """Queue launches while a frame is free and something is ready."""
        while len(self._in_flight) < FRAMES:
            launch = self.scheduler.next(any(flight.launch.is_round for flight in self._in_flight))
            if launch is None:
                return
            busy = {flight.frame for flight in self._in_flight}
            frame = next(frame for frame in range(FRAMES) if frame not in busy)
            self._writers[frame].write(self._device.arguments(frame), launch)
            submitted_s = perf_counter()
            self._device.submit(launch.graph.id, frame)
            self._in_flight.append(Flight(launch, frame, submitted_s, alone=not busy))

    def _settle_oldest(self) -> None:
        flight = self._in_flight[0]
        launch = flight.launch
        try:
            completion = self._device.collect(flight.frame)
        except Exception as error:  # a program's own failure: what its lanes hold is lost, the others go on
            self._release(flight)
            for request in launch.requests:
                request.error = RequestError(f"Request {request.id} was lost on the device: {error!r}.")
                request.cancelled = True
                self.scheduler.drop(request)
                self._retire_unless_named(request)
            raise
        collected_s = perf_counter()
        kept = [request for request in launch.requests if launch.samples and not request.cancelled]
        additions = [settle(launch, completion, request, self._copies) for request in kept]
        self._additions.extend(additions)
        self._release(flight)
        if launch.is_round:
            self._observe(flight, collected_s - flight.submitted_s if flight.alone else None, additions)
        else:
            for request in kept:
                self.scheduler.run(request)
        for request in launch.requests:
            if request.ended:
                self._retire_unless_named(request)

    def _release(self, flight: Flight) -> None:
        self._device.release(flight.frame)
        self._in_flight.popleft()

    def _observe(self, flight: Flight, seconds: float | None, additions: list[Addition]) -> None:
        outcomes = tuple(lane_outcome(addition) for addition in additions if addition.request.error is None)
        graph = flight.launch.graph
        if outcomes:
            self.policy.observe(RoundOutcome(graph.batch_capacity, graph.token_capacity, seconds, outcomes))

    def _retire_unless_named(self, request: Request) -> None:
        """Nothing a queued launch names may be freed."""
        if any(request in flight.launch.requests for flight in self._in_flight):
            return
        self.scheduler.retire(request)
        del self._live[request.id]
        if request.cancelled:
            present_cancelled(request)

    def _present(self) -> None:
        while self._additions:
            addition = self._additions.popleft()
            if addition.request.error is None:
                present(addition)

    def _cancel_all(self, handles: Sequence[Request]) -> None:
        for request in handles:
            self.cancel(request)


def policy_of(serving: Serving, catalog: Catalog) -> Policy:
    """The policy that the serving section names; without one, the widest prepared round."""
    if serving.fixed_width is not None:
        return fixed(catalog.widths, serving.fixed_width)
    if serving.adaptive_verification:
        return adaptive(catalog.widths, Prior(), serving.exploration_share)
    return fixed(catalog.widths, max(max(widths) for widths in catalog.widths.values()))


def _completion_of(request: Request) -> Completion:
    if request.error is not None:
        raise request.error
    assert request.completion is not None
    return request.completion
