"""Grammars are compiled beside the engine: before the request is queued, and for nobody who has left."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from flare.runtime.constraints.grammar import GrammarMatcher, Grammars
from flare.runtime.constraints.wishes import Wish
from flare.server.engine_thread import thread
from tests.runtime.constraints.obedient import take_masks
from tests.server.serving import WAIT_S, answering, scripted, until

COMPLETIONS = "/v1/completions"
TRUTH = answering({"hi": "there" * 20, "say": "yes"})
CONSTRAINED = {"prompt": "say", "regex": "yes|no"}


class Compilations:
    """Where grammars are compiled; while the gate is closed they take for ever."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.loaders: list[str] = []
        self.texts: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        compile, load = Grammars._compile, Grammars._load

        def compiled(grammars: Grammars, wish: Wish) -> GrammarMatcher:
            self.threads.append(threading.current_thread().name)
            self.texts.append(wish.text)
            assert self.gate.wait(WAIT_S)
            return compile(grammars, wish)

        def loaded(grammars: Grammars):
            self.loaders.append(threading.current_thread().name)
            return load(grammars)

        patch.setattr(Grammars, "_compile", compiled)
        patch.setattr(Grammars, "_load", loaded)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    take_masks(monkeypatch)
    compilations = Compilations(monkeypatch)
    yield compilations
    compilations.gate.set()


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": "yes|no"},
        {"grammar": 'start: "yes" | "no"'},
        {"regex": "yes|no", "n": 3},
        {"regex": "yes|no", "stream": True},
        {"regex": "yes|no", "constrain_after": "</think>"},
    ],
)
def test_a_grammar_is_compiled_once_and_not_on_the_engines_thread(compilations, asked):
    with scripted(TRUTH) as served:
        for _ in range(2):
            assert served.post(COMPLETIONS, CONSTRAINED | {"regex": None} | asked).status_code == 200
    assert len(compilations.threads) == 1 and compilations.threads[0].startswith("flare-grammar")


def test_a_schema_is_compiled_beside_the_engine_too(compilations):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with scripted(answering({"say": '{"a":1}', "<user>say": '{"a":1}'})) as served:
        said = served.post(COMPLETIONS, {"prompt": "say", "json_schema": schema}).json()
        chat = {"messages": [{"role": "user", "content": "say"}], "response_format": wanted}
        answered = served.post("/v1/chat/completions", chat).json()
    assert said["choices"][0]["text"] == answered["choices"][0]["message"]["content"] == '{"a":1}'
    assert len(compilations.threads) == 1 and compilations.threads[0].startswith("flare-grammar")


def test_the_library_is_loaded_before_the_first_request(compilations):
    with scripted(TRUTH) as served:
        assert compilations.loaders == ["flare-engine"]
        assert served.post(COMPLETIONS, CONSTRAINED).status_code == 200
    assert len(compilations.loaders) == 1


def test_a_constraint_of_the_configuration_is_compiled_before_the_first_request(compilations):
    with scripted(TRUTH, "sampling.regex=yes") as served:
        assert compilations.texts == ["yes"]
        assert served.post(COMPLETIONS, {"prompt": "say"}).json()["choices"][0]["text"] == "yes"
    assert compilations.texts == ["yes"]


def test_a_server_without_the_library_answers_what_needs_none(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with scripted(TRUTH) as served:
        assert served.post(COMPLETIONS, {"prompt": "say"}).status_code == 200
        refused = served.post(COMPLETIONS, CONSTRAINED)
        assert refused.status_code == 400 and "pip install 'flare[constraints]'" in refused.json()["error"]["message"]
        until(lambda: served.engine.open_choices == 0)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"regex": "a(b"}, "regex"),
        ({"grammar": "start: nothing"}, "grammar"),
        ({"json_schema": {"type": "thing"}}, "json_schema"),
    ],
)
def test_a_broken_grammar_is_refused_and_never_reaches_the_engine(compilations, asked, param):
    with scripted(TRUTH) as served:
        refused = served.post(COMPLETIONS, {"prompt": "say", "n": 2} | asked)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, param, "invalid_value")
        assert error["message"].startswith(f"{param} cannot be followed: ") and "\n" not in error["message"]
        until(lambda: served.engine.open_choices == 0)
        assert served.post(COMPLETIONS, CONSTRAINED).status_code == 200
    assert all(name.startswith("flare-grammar") for name in compilations.threads) and len(compilations.threads) == 2


def test_streams_go_on_while_a_grammar_is_compiled(compilations):
    """Compiling waits for the stream to end: on the engine's thread or the event loop's, both would wait for ever."""
    with scripted(TRUTH, pause_s=0.002) as served, ThreadPoolExecutor(1) as pool:
        stream = served.client().completions.create(model="smollm2", prompt="hi", stream=True, max_tokens=60)
        next(iter(stream))
        compilations.gate.clear()
        waiting = pool.submit(served.post, COMPLETIONS, CONSTRAINED)
        until(lambda: bool(compilations.threads))
        for _ in stream:
            pass
        assert not waiting.done()
        compilations.gate.set()
        assert waiting.result().json()["choices"][0]["text"] == "yes"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing(compilations, stream):
    with scripted(TRUTH) as served:
        compilations.gate.clear()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(served.url + COMPLETIONS, json=CONSTRAINED | {"stream": stream}, timeout=0.5)
        until(lambda: served.service.server.in_flight == 0)
        assert served.engine.open_choices == 1  # somebody still works for it
        compilations.gate.set()
        until(lambda: served.engine.open_choices == 0)
        assert served.device.submitted == 0 and served.engine.stats.free_slots == 4
        assert served.post(COMPLETIONS, CONSTRAINED).json()["choices"][0]["text"] == "yes"


def test_who_leaves_before_the_turn_of_a_grammar_comes_costs_no_compilation(compilations):
    with scripted(TRUTH) as served:
        compilations.gate.clear()
        for index in range(6):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(served.url + COMPLETIONS, json={"prompt": "say", "regex": f"yes|{index}"}, timeout=0.1)
        until(lambda: served.service.server.in_flight == 0)
        compilations.gate.set()
        until(lambda: served.engine.open_choices == 0)
    assert len(compilations.threads) <= 2  # those that the threads had begun


def test_a_grammar_that_takes_too_long_is_a_timeout(compilations):
    with scripted(TRUTH, "serving.request_timeout_s=0.2") as served:
        compilations.gate.clear()
        late = served.post(COMPLETIONS, CONSTRAINED)
        assert late.status_code == 408 and late.json()["error"]["code"] == "timeout"
        compilations.gate.set()
        until(lambda: served.engine.open_choices == 0)


def test_what_is_compiled_for_takes_its_place_in_the_queue(compilations):
    with (
        scripted(TRUTH, "serving.concurrency=1", "serving.queue_limit=1") as served,
        ThreadPoolExecutor(2) as pool,
    ):
        compilations.gate.clear()
        waiting = [pool.submit(served.post, COMPLETIONS, CONSTRAINED) for _ in range(2)]
        until(lambda: served.engine.open_choices == 2)
        assert served.post(COMPLETIONS, {"prompt": "say"}).status_code == 429
        compilations.gate.set()
        assert [done.result().status_code for done in waiting] == [200, 200]


def test_a_drain_answers_what_is_compiled_for(compilations):
    with scripted(TRUTH) as served, ThreadPoolExecutor(1) as pool:
        compilations.gate.clear()
        waiting = pool.submit(served.post, COMPLETIONS, CONSTRAINED)
        until(lambda: bool(compilations.threads))
        served.end()
        until(lambda: served.service.server.phase == "draining")
        compilations.gate.set()
        assert waiting.result().json()["choices"][0]["text"] == "yes"
        served.thread.join(WAIT_S)
        assert served.outcome == [0]


def test_a_second_signal_tells_who_waits_for_a_grammar(compilations):
    with scripted(TRUTH) as served, ThreadPoolExecutor(5) as pool:
        compilations.gate.clear()
        asked = [CONSTRAINED | {"regex": f"yes|{index}", "n": 1 + index % 2} for index in range(5)]
        waiting = [pool.submit(served.post, COMPLETIONS, body) for body in asked]
        until(lambda: served.engine.open_choices == 7 and len(compilations.threads) == 2)
        served.end()
        until(lambda: served.service.server.phase == "draining")
        served.end()
        for lost in waiting:  # those in the compilers' hands, and those whose turn had not come
            assert lost.result().status_code == 500 and lost.result().json()["error"]["code"] == "answer_lost"
        assert served.engine.open_choices == 0
        compilations.gate.set()


def test_an_engine_that_stops_meanwhile_is_said(compilations, monkeypatch):
    monkeypatch.setattr(thread, "FAILURES_IN_A_ROW", 1)
    with scripted(TRUTH) as served, ThreadPoolExecutor(1) as pool:
        compilations.gate.clear()
        waiting = pool.submit(served.post, COMPLETIONS, CONSTRAINED)
        until(lambda: bool(compilations.threads))
        served.device.failing = 1
        for lost in (served.post(COMPLETIONS, {"prompt": "say"}), waiting.result()):
            assert lost.status_code == 500 and lost.json()["error"]["code"] == "answer_lost"
        compilations.gate.set()


def test_a_failure_that_nobody_foresaw_is_told_and_ends_nothing(monkeypatch, caplog):
    def fail(grammars, wish):
        raise OSError("no room on the desk")

    with scripted(TRUTH) as served:
        with monkeypatch.context() as patch:
            patch.setattr(Grammars, "_compile", fail)
            lost = served.post(COMPLETIONS, CONSTRAINED)
            assert lost.status_code == 500 and lost.json()["error"]["code"] == "answer_lost"
        assert served.engine.open_choices == 0
        assert served.post(COMPLETIONS, {"prompt": "say"}).status_code == 200
    assert "A request was not taken in." in caplog.text
