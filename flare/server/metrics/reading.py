"""What is read from an engine on its own thread: the numbers of the moment and what its policy has learned."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from flare.runtime.engine import Engine
from flare.runtime.policy import Adaptive, Explanation
from flare.runtime.stats import EngineStats
from flare.server.engine_thread import AnswerLostError
from flare.server.server import Server

PATIENCE_S = 1.0  # the engine answers between two steps; a long one does not hold up whoever looks


class PolicyReading(NamedTuple):
    """What the policy did and knows.

    Attributes:
        last: its newest choice; weighed: the newest one that compared widths.
        budget_s, spent_s: of exploration; nothing is spent by a policy that does not explore.
    """

    last: Explanation | None
    weighed: Explanation | None
    budget_s: float
    spent_s: float


class Reading(NamedTuple):
    """One look at an engine.

    Attributes:
        cached_pages: held by cached prefixes alone, so that a request may have them.
    """

    stats: EngineStats
    cached_pages: int
    policy: PolicyReading

    @property
    def used_pages(self) -> int:
        """Pages that requests hold."""
        return self.stats.total_pages - self.stats.free_pages - self.cached_pages


class Reader:
    """Reads one server's engine; the last reading stands in while the engine is busy or gone."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._last: Reading | None = None

    async def read(self) -> Reading | None:
        """The newest reading to be had; None before the first one."""
        engine = self._server.engine
        if engine is not None and self._server.phase in ("ready", "draining"):
            with suppress(TimeoutError, AnswerLostError):
                self._last = await asyncio.wait_for(engine.call(reading_of), PATIENCE_S)
        return self._last


def reading_of(engine: Engine) -> Reading:
    """For the engine's thread; costs a pass over the page counts."""
    memory = engine.scheduler.memory
    cached = memory.pages.only_held_by(memory.prefixes.held) if memory.prefixes is not None else 0
    explained = engine.explain()
    policy = engine.policy
    explores = policy.exploration if isinstance(policy, Adaptive) else None
    return Reading(
        engine.stats(),
        int(cached),
        PolicyReading(
            last=explained[-1] if explained else None,
            weighed=next((each for each in reversed(explained) if each.options), None),
            budget_s=explores.budget_seconds if explores is not None else 0.0,
            spent_s=explores.spent_seconds if explores is not None else 0.0,
        ),
    )
