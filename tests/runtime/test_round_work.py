"""The host's work per round, in executed lines: it follows the tokens of the round, never those there have been."""

import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from flare.runtime import copies
from flare.runtime.engine import Engine
from flare.runtime.history import ContextIndex, History
from flare.runtime.sampling import Sampling
from flare.runtime.suffix_index import SuffixIndex
from tests.runtime import scripted_core, scripted_device
from tests.runtime.scripted_core import scripted_engine
from tests.runtime.scripted_device import scripted_manifest

NOT_THE_HOST = {str(Path(module.__file__).resolve()) for module in (scripted_core, scripted_device)}
RING_TOKENS = 600
GROWTH = 1.1  # allowed between two windows of rounds; what grows at all grows several times over


def walking(prefix: Sequence[int]) -> int:
    """Half of every 32 tokens repeat themselves, half were never seen: copies are found, taken and refused."""
    place = len(prefix)
    return 32 + place % 4 if place % 32 < 16 else 64 + (place * 2654435761 >> 9) % 400


def lines_of(engine: Engine, steps: int) -> float:
    """Lines that so many steps execute outside the scripted device, per step."""
    lines = 0

    def inside(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return inside

    def entered(frame, _event, _argument):
        return None if frame.f_code.co_filename in NOT_THE_HOST else inside

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        for _ in range(steps):
            engine.step()
    finally:
        sys.settrace(before)
    return lines / steps


def served(request_tokens: int, context: int) -> Engine:
    return scripted_engine(
        walking,
        scripted_manifest(lanes=1, widths=(1, 4), context=context),
        sampling={"max_tokens": request_tokens, "temperature": 0.0, "ignore_eos": True},
        clock=count().__next__,  # widths follow from the tokens alone
        history_drafts=True,
        adaptive_verification=True,
        prefix_cache=False,
        concurrency=1,
    )


def skip_to(engine: Engine, reached: Callable[[], bool]) -> None:
    while not reached():
        engine.step()


def growth_with_tokens() -> float:
    """Work of a request's late rounds over that of earlier ones; the ring is full before both."""
    engine = served(1800, 2048)
    (request,) = engine.submit([1, 2, 3, 4, 5], Sampling())
    windows = []
    for tokens in (700, 1600):
        skip_to(engine, lambda least=tokens: request.generated_tokens >= least)
        windows.append(lines_of(engine, 60))
    engine.close()
    return windows[1] / windows[0]


def growth_with_requests() -> float:
    """Work of all steps of a late request over that of an early one, the ring having been full before both."""
    engine = served(180, 256)
    windows = []
    for number in range(24):
        (request,) = engine.submit([1, 2, 3, 4, 5], Sampling())
        if number in (8, 23):
            steps, lines = 0, 0.0
            while not request.finished:
                lines += lines_of(engine, 1)
                steps += 1
            windows.append(lines / steps)
        skip_to(engine, lambda handle=request: handle.finished)
    assert len(engine._copies._history) == RING_TOKENS
    engine.close()
    return windows[1] / windows[0]


@pytest.fixture(autouse=True)
def small_ring(monkeypatch):
    monkeypatch.setattr(copies, "History", lambda: History(RING_TOKENS))


def test_a_late_round_of_a_long_request_costs_what_an_early_one_does():
    assert growth_with_tokens() < GROWTH


def test_a_round_costs_the_same_after_any_number_of_requests():
    assert growth_with_requests() < GROWTH


def test_indexing_a_context_anew_for_every_round_is_caught(monkeypatch):
    learn = ContextIndex._learn

    def anew(self):
        self._indexed, self._index = 0, SuffixIndex()
        return learn(self)

    monkeypatch.setattr(ContextIndex, "_learn", anew)
    assert growth_with_tokens() > GROWTH


def test_a_ring_that_looks_through_all_it_has_ever_held_is_caught(monkeypatch):
    found, ever = History.continuation, []

    def thorough(self, query, limit=14, salt=""):
        ever.extend(query[-1:])
        for _ in ever:
            pass
        return found(self, query, limit, salt)

    monkeypatch.setattr(History, "continuation", thorough)
    assert growth_with_requests() > GROWTH


def test_the_ring_keeps_one_run_for_each_entry_of_its_index():
    ring = History(40)
    responses = [ring.open() for _ in range(3)]
    for step in range(200):
        ring.extend(responses[step % 3], [(step * step + place) % 3 for place in range(step % 5)])
        for length, begins, runs in ring._runs:
            kept = {run: place for place, run in enumerate(runs) if run}
            assert kept == {run: begin % ring.capacity for run, begin in begins.items()}, length
            assert sum(map(bool, runs)) == len(begins)
