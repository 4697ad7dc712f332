"""The engine: text in, text out, over a prepared core. The loop that submits, settles and presents."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from time import perf_counter
from types import TracebackType

from flare.config.serving import Serving
from flare.errors import RequestError
from flare.runtime.catalog import Catalog
from flare.runtime.copies import Copies
from flare.runtime.core import Core
from flare.runtime.intake import Intake, Prompt, as_prompts
from flare.runtime.launches import Launch
from flare.runtime.pipeline import Pipeline
from flare.runtime.policy import Explanation, Policy, Prior, RoundOutcome, adaptive, fixed
from flare.runtime.requests import Request, State
from flare.runtime.results import Completion, Event
from flare.runtime.sampling import Sampling
from flare.runtime.scheduler import Scheduler
from flare.runtime.settling import (
    Addition,
    lane_outcome,
    present,
    present_cancelled,
    settle,
    settle_scores,
    settle_state,
)
from flare.runtime.stats import EngineStats, stats_of


class Engine:
    """Serves requests over a core; use it as a context manager.

    Not thread-safe: one thread at a time may call it, but any thread `compile` and `load_grammars`. `generate` and
    `stream` drive the loop themselves; a server calls `submit`, then `step` until the handles are finished.
    """

    def __init__(self, core: Core, clock: Callable[[], float] = perf_counter) -> None:
        """Args: clock: seconds, for timings and round costs."""
        config, device = core.config, core.device
        extent, serving = device.manifest.extent, config.serving
        catalog = Catalog(device.manifest, speculative=serving.mtp_draft_tokens > 0 or config.preparation.mtp_only)
        self.vocabulary = core.vocabulary
        self.model_name = config.model_name()
        self.policy = policy_of(serving, catalog, core.measured_costs)
        copies = Copies(serving.history_drafts, serving.context_drafts)
        self.scheduler = Scheduler(catalog, extent, copies, self.policy, serving.prefix_cache)
        self._intake = Intake(config, core.vocabulary, extent, catalog)
        self._copies = copies
        self._device = device
        device.attach()
        self._closed = False
        self._clock = clock
        self._in_flight = Pipeline(device, extent, clock)
        self._live: dict[int, Request] = {}
        self._additions: deque[Addition] = deque()
        self._nothing_to_start = False  # until something is submitted, cancelled or settled

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

    def load_grammars(self) -> None:
        """Load the grammar library and its view of the vocabulary, which the first constraint waits for otherwise.

        Any thread may call this while another one drives the engine.

        Raises:
            RequestError: this core cannot follow constraints, because the library is not installed, for one.
        """
        self._intake.load_grammars()

    def compile(self, sampling: Sampling) -> None:
        """Compile the constraint of a sampling, so that `submit` finds it among the recent ones and is quick.

        Any thread may call this while another one drives the engine. Without a constraint nothing happens.

        Raises:
            RequestError: the constraint cannot be followed; `submit` says the same.
        """
        self._intake.compile(sampling)

    def submit(self, prompt: Prompt, sampling: Sampling | None = None) -> tuple[Request, ...]:
        """Queue one prompt: a handle for each of its `sampling.n` completions. Nothing runs before `step`.

        Raises:
            RequestError, CapacityError: what this core cannot serve.
        """
        if self._closed:
            raise RequestError("This engine is closed: open another one over the core.")
        handles = self._intake.requests(prompt, sampling or Sampling())
        for request in handles:
            request.submitted_s = self._clock()
            self.scheduler.add(request)
            self._live[request.id] = request
        self._nothing_to_start = False
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
        self._nothing_to_start = False
        self.scheduler.drop(request)
        self._retire_unless_named(request)

    def step(self) -> bool:
        """Settle the oldest launch and keep the device fed; returns whether work is left.

        The next launch is queued before the settled one's text is decoded and its events are made.
        """
        if not self._nothing_to_start:
            self._fill()
        if self._in_flight:
            self._settle_oldest()
            self._fill()
        self._present()
        return not self.idle

    def close(self) -> None:
        """Wait for what the device is doing, cancel what is left, free everything. Idempotent."""
        self._present()
        while self._in_flight:
            self._in_flight.drain()
            self.scheduler.landed(self._in_flight.release(), sound=False)
        for request in list(self._live.values()):
            request.cancelled = not request.finished
            self.scheduler.drop(request)
            self._retire_unless_named(request)
        if not self._closed:  # by now another engine may have the frames
            self._closed = True
            self._device.detach()

    def explain(self) -> tuple[Explanation, ...]:
        """Why the last rounds got their widths, newest last."""
        return self.policy.explain()

    def stats(self) -> EngineStats:
        """What is held and queued; costs next to nothing."""
        return stats_of(self.scheduler, len(self._in_flight))

    def check(self) -> None:
        """Raise AssertionError unless everything held is held once and by someone; for tests, it walks all of it."""
        self.scheduler.check(list(self._live.values()), list(self._in_flight))

    def _fill(self) -> None:
        """Queue launches while a frame is free and something is ready.

        The snapshot of an ended request costs a copy: whoever is about to be admitted waits for it and may begin there.
        """
        while self._in_flight and self.scheduler.waiting and self._in_flight.oldest.graph.kind == "snapshot":
            self._settle_oldest()
        while not self._in_flight.full:
            launch = self.scheduler.next()
            if launch is None:
                self._nothing_to_start = bool(self._in_flight)
                return
            self._in_flight.submit(launch)

    def _settle_oldest(self) -> None:
        launch = self._in_flight.oldest
        self._nothing_to_start = False
        try:
            completion, seconds = self._in_flight.collect()
        except Exception as error:  # a program's own failure: what its lanes hold is lost, the others go on
            self._lose(launch, error)
            raise
        settle_scores(launch, completion)
        additions: list[Addition] = []
        samples = launch.samples
        for request in launch.requests:
            if not samples:
                settle_state(completion, request)
            elif not request.ended:
                additions.append(settle(launch, completion, request, self._copies))
        self._additions.extend(additions)
        self._in_flight.release()
        self.scheduler.landed(launch)
        if launch.is_round:
            self._observe(launch, seconds, additions)
        for request in launch.requests:
            if request.ended:
                self._end(request)

    def _lose(self, launch: Launch, error: Exception) -> None:
        """Nobody knows what the launch did: end its requests, publish nothing of it."""
        self._in_flight.release()
        for request in launch.requests:
            request.lost = True
            if not request.ended:
                request.error = RequestError(f"Request {request.id} was lost on the device: {error!r}.")
                request.cancelled = True
            self.scheduler.drop(request)
        self.scheduler.landed(launch, sound=False)
        for request in launch.requests:
            self._retire_unless_named(request)

    def _observe(self, launch: Launch, seconds: float | None, additions: list[Addition]) -> None:
        outcomes = tuple([lane_outcome(addition) for addition in additions if addition.request.error is None])
        if outcomes:
            self.policy.observe(
                RoundOutcome(launch.graph.batch_capacity, launch.graph.token_capacity, seconds, outcomes)
            )

    def _end(self, request: Request) -> None:
        """An ended request leaves; how one ended on the device is kept for prompts that go on from there."""
        if request.state is State.RUNNING and request.error is None and not request.cancelled:
            self.scheduler.finish(request)
        else:
            self.scheduler.drop(request)
        self._retire_unless_named(request)

    def _retire_unless_named(self, request: Request) -> None:
        """Nothing a queued launch names may be freed."""
        if self.scheduler.named(request):
            return
        self.scheduler.retire(request)
        del self._live[request.id]
        if request.cancelled:
            present_cancelled(request)

    def _present(self) -> None:
        while self._additions:
            addition = self._additions.popleft()
            if addition.request.error is None:
                present(addition, self._clock())

    def _cancel_all(self, handles: Sequence[Request]) -> None:
        for request in handles:
            self.cancel(request)


def policy_of(serving: Serving, catalog: Catalog, measured_costs: Mapping[tuple[int, int], float]) -> Policy:
    """The policy that the serving section names; without one, the widest prepared round."""
    if serving.fixed_width is not None:
        return fixed(catalog.widths, serving.fixed_width)
    if serving.adaptive_verification:
        policy = adaptive(catalog.widths, Prior(), serving.exploration_share)
        for (batch, width), seconds in measured_costs.items():
            if width in catalog.widths.get(batch, ()):
                policy.costs.seed((batch, width), seconds)
        return policy
    return fixed(catalog.widths, max(max(widths) for widths in catalog.widths.values()))


def _completion_of(request: Request) -> Completion:
    if request.error is not None:
        raise request.error
    assert request.completion is not None
    return request.completion
