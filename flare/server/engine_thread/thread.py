"""The thread that owns the engine: commands in, one delivery a step out.

All requests meet in this one engine, so those of different connections share its rounds. Nothing else may touch the
engine: what another thread wants of it is a command, carried out between two steps. Grammars are compiled on threads
beside it, before the request that needs one becomes a command.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple, TypeVar

from flare.errors import FlareError
from flare.runtime.engine import Engine
from flare.runtime.requests import Request
from flare.runtime.stats import EngineStats
from flare.server.engine_thread.answers import AnswerLostError, Answers, Arrival, Ask
from flare.server.observer import Delivery, Observer, Step

T = TypeVar("T")
Command = Callable[[Engine], None]

COMPILERS = 2  # grammars that are compiled at once: each takes a processor from the engine where there are few
FAILURES_IN_A_ROW = 8  # launches that may fail one after the other before the device counts as broken

log = logging.getLogger("flare.server")


@dataclass(slots=True)
class Followed:
    """A request in the engine and who waits for it; `rounds` of it were told."""

    request: Request
    answers: Answers
    choice: int
    rounds: int = 0


class Parcel(NamedTuple):
    """A delivery and where it goes; `ended` when it is the last of its choice."""

    answers: Answers
    choice: int
    delivery: Delivery
    ended: bool


class EngineThread:
    """Drives an engine on the thread that calls `run`; everything else is for the event loop's thread.

    Attributes:
        stats: after the last step that changed something.
        open_choices: submitted, and not ended in the engine.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, observer: Observer) -> None:
        self.stats: EngineStats = engine.stats()
        self.open_choices = 0
        self._engine = engine
        self._loop = loop
        self._observer = observer
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._compilers = ThreadPoolExecutor(COMPILERS, "flare-grammar")
        self._compiling: dict[Answers, Ask] = {}  # whose grammar is not ready yet
        self._lost: AnswerLostError | None = None  # why `run` has ended
        self._followed: list[Followed] = []
        self._stopping = False
        self._failures = 0
        self._idle = True

    def submit(self, ask: Ask) -> Answers:
        """Queue a request, its grammar compiled first; what the engine refuses is raised by the first `next`."""
        answers = Answers(ask.choices, self._cancel)
        self.open_choices += ask.choices
        if ask.constrained:
            self._compiling[answers] = ask
            self._compilers.submit(self._compile, ask, answers)
        else:
            self._queue(ask, answers)
        return answers

    async def call(self, function: Callable[[Engine], T]) -> T:
        """The function's result, computed on the engine's thread between two steps; what it raises is raised here.

        Raises:
            AnswerLostError: the engine stopped first.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def command(engine: Engine) -> None:
            try:
                self._check_runs()
                result = function(engine)
            except Exception as error:  # noqa: BLE001  it is raised where it was asked for
                self._post(partial(_settle, future, error))
            else:
                self._post(partial(_settle, future, None, result))

        self._order(command)
        return await future

    def stop(self) -> None:
        """Leave `run` after the current step; what is unfinished stays in the engine for its `close`."""

        def command(_engine: Engine) -> None:
            self._stopping = True

        self._order(command)
        self._compilers.shutdown(wait=False, cancel_futures=True)

    def run(self) -> None:
        """Serve until `stop`.

        Raises:
            Exception: a bug of the engine, or a device that fails again and again; every open choice is lost.
        """
        engine = self._engine
        try:
            while True:
                self._obey(wait=engine.idle)
                if self._stopping:
                    break
                self._step()
        finally:
            self._lose_all("The server is shutting down." if self._stopping else "The engine has stopped.")

    def _obey(self, wait: bool) -> None:
        """Carry out the commands that are there; wait for one where there is nothing else to do."""
        try:
            while not self._stopping:
                command = self._commands.get(block=wait)
                command(self._engine)
                wait = False
        except Empty:
            return

    def _step(self) -> None:
        """One step. A launch that fails loses its lanes and the others go on, unless the engine itself is broken."""
        engine, began_s = self._engine, perf_counter()
        lost = False
        try:
            engine.step()
            self._failures = 0
        except Exception:
            log.exception("A launch failed.")
            self._failures += 1
            if self._failures == FAILURES_IN_A_ROW:
                raise
            engine.check()
            lost = True
        self._deliver(perf_counter() - began_s, lost)

    def _compile(self, ask: Ask, answers: Answers) -> None:
        """On a thread of the compilers. Who left meanwhile is sorted out by `_begin`."""
        refusal = None if answers.stopped else _refusal(lambda: self._engine.compile(ask.sampling))
        self._post(partial(self._compiled, answers, refusal))

    def _compiled(self, answers: Answers, refusal: Exception | None) -> None:
        ask = self._compiling.pop(answers, None)
        if ask is None:  # told meanwhile that the engine has ended
            return
        if refusal is None:
            self._queue(ask, answers)
        else:
            self._refuse(ask.choices, answers, refusal)

    def _queue(self, ask: Ask, answers: Answers) -> None:
        self._order(lambda engine: self._begin(engine, ask, answers))

    def _order(self, command: Command) -> None:
        self._commands.put(command)
        if self._lost is not None:
            self._turn_away()

    def _turn_away(self) -> None:
        """What was ordered too late for `run`: each command sees that it has ended, and tells who waits."""
        with suppress(Empty):
            while True:
                self._commands.get_nowait()(self._engine)

    def _begin(self, engine: Engine, ask: Ask, answers: Answers) -> None:
        handles: list[Request] = []

        def submit() -> None:
            self._check_runs()
            if answers.stopped:
                raise AnswerLostError("Nobody waits for the request any more.")
            for prompt in ask.prompts:
                handles.extend(engine.submit(prompt, ask.sampling))

        refusal = _refusal(submit)
        if refusal is None:
            self._followed += [Followed(handle, answers, choice) for choice, handle in enumerate(handles)]
            return
        for handle in handles:
            engine.cancel(handle)
        self._post(partial(self._refuse, ask.choices, answers, refusal))

    def _cancel(self, answers: Answers) -> None:
        def command(engine: Engine) -> None:
            for followed in self._followed:
                if followed.answers is answers:
                    engine.cancel(followed.request)

        self._order(command)

    def _deliver(self, seconds: float, lost: bool) -> None:
        """Hand over what the step brought, all of it in one call."""
        parcels: list[Parcel] = []
        for followed in self._followed:
            request = followed.request
            if not (request.events or request.finished):
                continue
            rounds = tuple(request.rounds[followed.rounds :])
            followed.rounds += len(rounds)
            error = _error_of(request, lost)
            events = request.take_events() or [None]
            for index, event in enumerate(events):
                last = index == len(events) - 1
                delivery = Delivery(request.id, event, rounds if index == 0 else (), error if last else None)
                parcels.append(Parcel(followed.answers, followed.choice, delivery, last and request.finished))
        rested, self._idle = self._engine.idle and not self._idle, self._engine.idle
        if parcels or rested:  # what an ended request still held is free when the engine rests
            self._followed = [followed for followed in self._followed if not followed.request.finished]
            self._post(partial(self._arrive, parcels, self._engine.stats(), seconds))

    def _lose_all(self, reason: str) -> None:
        for followed in self._followed:
            delivery = Delivery(followed.request.id, None, (), AnswerLostError(reason))
            parcel = Parcel(followed.answers, followed.choice, delivery, True)
            self._post(partial(self._arrive, [parcel], self._engine.stats(), 0.0))
        self._followed = []
        self._post(partial(self._end, AnswerLostError(reason)))

    def _end(self, lost: AnswerLostError) -> None:
        self._lost = lost
        self._turn_away()
        while self._compiling:
            answers, ask = self._compiling.popitem()
            self._refuse(ask.choices, answers, lost)

    def _check_runs(self) -> None:
        """Raise why `run` has ended, once it has."""
        if self._lost is not None:
            raise self._lost

    def _post(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _arrive(self, parcels: list[Parcel], stats: EngineStats, seconds: float) -> None:
        self.stats = stats
        for answers, choice, delivery, ended in parcels:
            if delivery.event is not None:
                answers.arrive(Arrival(choice, delivery.event))
            if ended:
                self.open_choices -= 1
                answers.end(delivery.error)
        self._observer.stepped(Step([parcel.delivery for parcel in parcels], stats, seconds))

    def _refuse(self, choices: int, answers: Answers, error: Exception) -> None:
        self.open_choices -= choices
        for _ in range(choices):
            answers.end(error)


def _refusal(take_in: Callable[[], None]) -> Exception | None:
    """Why a request is not taken in; None when it was."""
    try:
        take_in()
    except (FlareError, AnswerLostError) as error:
        return error
    except Exception as error:  # one request's intake; the engine has not begun it
        log.exception("A request was not taken in.")
        return AnswerLostError(f"The request could not be taken in: {error!r}.")
    return None


def _error_of(request: Request, lost: bool) -> Exception | None:
    """Why a request ended without its text; in a step that failed, the request is not to blame."""
    if request.error is not None:
        return AnswerLostError(str(request.error)) if lost else request.error
    return AnswerLostError("The request was cancelled.") if request.finish_reason == "cancelled" else None


def _settle(future: "asyncio.Future[T]", error: Exception | None, result: T | None = None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # pyright: ignore[reportArgumentType]  a result or an error
