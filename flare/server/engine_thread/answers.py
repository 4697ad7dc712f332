"""One HTTP request as the engine sees it, and its choices as they come back to asyncio."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from flare.runtime.constraints import wished
from flare.runtime.results import Event
from flare.runtime.sampling import Sampling


class AnswerLostError(Exception):
    """The engine cannot finish an answer, through no fault of who asked."""


@dataclass(frozen=True)
class Ask:
    """What one HTTP request asks of the engine.

    Attributes:
        prompts: token ids; choice `prompt index * n + i` answers a prompt.
        sampling: with `n` set.
    """

    prompts: tuple[list[int], ...]
    sampling: Sampling

    @property
    def choices(self) -> int:
        """Completions in all."""
        return len(self.prompts) * (self.sampling.n or 1)

    @property
    def constrained(self) -> bool:
        """Whether a grammar must be compiled for it."""
        return bool(wished(self.sampling))


class Arrival(NamedTuple):
    """An event of one choice; the last event of a choice carries its completion."""

    choice: int
    event: Event


class Answers:
    """The choices of one HTTP request; lives on the event loop's thread."""

    def __init__(self, choices: int, cancel: Callable[["Answers"], None]) -> None:
        self._open = choices
        self._cancel = cancel
        self._arrived: list[Arrival] = []
        self._error: Exception | None = None
        self._stopped = False
        self._wake = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Whether nobody waits any more; for any thread."""
        return self._stopped

    async def next(self) -> list[Arrival]:
        """What came since the last call, at least one arrival; empty when every choice has ended.

        Raises:
            FlareError: the engine refuses the request, or the request itself made one of its choices fail.
            AnswerLostError: a choice failed for another reason.
            Exception: what `stop` was given.
        """
        while not self._arrived and self._open and self._error is None:
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None and not self._arrived:
            raise self._error
        arrived, self._arrived = self._arrived, []
        return arrived

    def stop(self, reason: Exception) -> None:
        """Cancel what still runs; `next` raises the reason. Without effect on what has ended."""
        if self._stopped or not self._open:
            return
        self._stopped = True
        self._arrived.clear()
        self._fail(reason)
        self._cancel(self)

    def arrive(self, arrival: Arrival) -> None:
        """An event of a choice."""
        if not self._stopped:
            self._arrived.append(arrival)
            self._wake.set()

    def end(self, error: Exception | None) -> None:
        """A choice has ended, with an error or without."""
        self._open -= 1
        if error is not None:
            self._fail(error)
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake.set()
