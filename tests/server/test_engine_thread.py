"""The engine's thread after its end: whoever orders something then is told at once, and once."""

import asyncio
import threading

import pytest

from flare.runtime.engine import Engine
from flare.runtime.sampling import Sampling
from flare.server.engine_thread import AnswerLostError, Ask, EngineThread
from flare.server.observer import Observers
from tests.runtime.scripted_core import mixing, scripted_engine

ENDED = "The server is shutting down"


async def ended(thread: EngineThread) -> None:
    """Have it run and stop."""
    running = asyncio.create_task(asyncio.to_thread(thread.run))
    await thread.call(lambda engine: engine.idle)
    thread.stop()
    await running


async def after_its_end(engine: Engine) -> None:
    thread = EngineThread(engine, asyncio.get_running_loop(), Observers())
    await ended(thread)
    with pytest.raises(AnswerLostError, match=ENDED):
        await asyncio.wait_for(thread.call(lambda engine: engine.idle), 10)
    answers = thread.submit(Ask(([1], [2]), Sampling()))
    with pytest.raises(AnswerLostError, match=ENDED):
        await asyncio.wait_for(answers.next(), 10)
    assert thread.open_choices == 0


async def compiled_after_its_end(engine: Engine, compiling: threading.Event, gate: threading.Event) -> None:
    thread = EngineThread(engine, asyncio.get_running_loop(), Observers())
    answers = thread.submit(Ask(([1],), Sampling(regex="a")))
    await asyncio.to_thread(compiling.wait, 10)
    await ended(thread)
    with pytest.raises(AnswerLostError, match=ENDED):
        await asyncio.wait_for(answers.next(), 10)
    assert thread.open_choices == 0
    gate.set()
    await asyncio.to_thread(thread._compilers.shutdown)
    await asyncio.sleep(0)
    assert thread.open_choices == 0


def test_what_is_ordered_after_its_end_is_refused():
    with scripted_engine(mixing()) as engine:
        asyncio.run(after_its_end(engine))


def test_a_grammar_that_is_ready_after_its_end_changes_nothing(monkeypatch):
    compiling, gate = threading.Event(), threading.Event()

    def compile(_engine, _sampling):
        compiling.set()
        assert gate.wait(10)

    monkeypatch.setattr(Engine, "compile", compile)
    with scripted_engine(mixing()) as engine:
        asyncio.run(compiled_after_its_end(engine, compiling, gate))
