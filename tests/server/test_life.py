"""A server under trouble: full queues, clients that leave, launches that fail, time that runs out, and its end."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import openai
import pytest

from flare.errors import ConfigError, PlanError
from flare.server.engine_thread import AnswerLostError, thread
from flare.server.service import Service
from tests.runtime.scripted_device import scripted_manifest
from tests.server.serving import answering, configured, mixing, running, scripted, until

LONG = {"prompt": "long", "max_tokens": 200, "ignore_eos": True, "stream": True, "speculation": False}

ALONE = ("serving.concurrency=1",)
ONE_LANE = scripted_manifest(lanes=1, vocab=300, context=512)


def truth(prefix):
    return 97 + len(prefix) % 26


@contextmanager
def streaming(served, body=LONG):
    """A raw connection that streams, of which the first token was read."""
    text = json.dumps(body).encode()
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
    head = "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""])
    address = served.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall(head.encode() + text)
        assert b"200 OK" in connection.recv(4096)
        yield connection


def rest(connection) -> str:
    """Everything until the server has said its last."""
    text = b""
    while not text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and (piece := connection.recv(65536)):
        text += piece
    return text.decode()


def test_requests_of_different_connections_share_rounds():
    with scripted(mixing(), "serving.mtp_draft_tokens=3", pause_s=0.002) as served:

        async def ask() -> list[str]:
            client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
            async with client:
                asked = [client.completions.create(model="smollm2", prompt=f"{i}ab", max_tokens=40) for i in range(8)]
                return [done.choices[0].text for done in await asyncio.gather(*asked)]

        texts = asyncio.run(ask())
        lanes = [lanes for kind, _, _, lanes in served.device.log if kind == "speculative"]
        assert max(lanes) == 4 and sum(lane > 1 for lane in lanes) > len(lanes) / 2
    with scripted(mixing()) as served:
        alone = [served.post("/v1/completions", {"prompt": f"{i}ab", "max_tokens": 40}).json() for i in range(8)]
    assert texts == [done["choices"][0]["text"] for done in alone]


def test_a_client_that_leaves_costs_at_most_two_more_rounds():
    with scripted(truth, pause_s=0.02) as served:
        total = served.engine.stats.free_pages
        with streaming(served):
            until(lambda: served.device.submitted > 4)
            begun = served.device.submitted
        until(lambda: served.engine.open_choices == 0)
        assert served.device.submitted - begun <= 2
        assert served.engine.stats.free_pages == total and served.engine.stats.free_slots == 4
        until(lambda: served.service.server.in_flight == 0)


def test_a_client_that_leaves_while_it_waits_for_a_whole_answer_is_cancelled_too():
    with scripted(truth, pause_s=0.02) as served:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(served.url + "/v1/completions", json=LONG | {"stream": False}, timeout=0.3)
        until(lambda: served.engine.open_choices == 0, seconds=1)
        assert served.device.submitted < 60


def test_a_full_queue_answers_429_and_says_when_to_come_back():
    with scripted(truth, *ALONE, "serving.queue_limit=1", manifest=ONE_LANE, pause_s=0.002) as served:
        with streaming(served) as connection, ThreadPoolExecutor(1) as pool:
            served.device.gate.clear()
            waiting = pool.submit(served.post, "/v1/completions", {"prompt": "x", "max_tokens": 2})
            until(lambda: served.engine.open_choices == 2)
            refused = served.post("/v1/completions", LONG)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            with pytest.raises(openai.RateLimitError):
                served.client().completions.create(model="smollm2", prompt="x")
            served.device.gate.set()
            assert rest(connection) and waiting.result().status_code == 200
        assert served.post("/v1/completions", {"prompt": "x", "n": 3}).status_code == 400


def test_a_failed_launch_fails_its_lanes_and_no_one_else():
    with scripted(truth, *ALONE, manifest=ONE_LANE, pause_s=0.005) as served:
        with streaming(served) as connection, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(served.post, "/v1/completions", {"prompt": "x", "max_tokens": 3})
            until(lambda: served.engine.open_choices == 2)
            served.device.failing = 1
            text = rest(connection)
            assert '"code":"answer_lost"' in text and "on fire" in text
            assert waiting.result().json()["choices"][0]["text"] == "bcd"
        assert served.post("/v1/completions", {"prompt": "x", "max_tokens": 3}).json()["choices"][0]["text"] == "bcd"
        served.device.failing = 1
        lost = served.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
        assert lost.status_code == 500 and lost.json()["error"]["type"] == "server_error"
        assert served.get("/health").status_code == 200


def test_a_device_that_only_fails_ends_the_server():
    with scripted(truth) as served:
        served.device.failing = 1000
        statuses = []
        with suppress(httpx.TransportError):  # it has ended between two requests
            while not served.outcome and len(statuses) < 20:
                statuses.append(served.post("/v1/completions", {"prompt": "x", "max_tokens": 3}).status_code)
        served.thread.join(10)
        assert set(statuses) <= {500, 503} and statuses[0] == 500
        assert isinstance(served.outcome[0], OSError)


def test_who_comes_in_the_step_that_breaks_the_engine_is_told_at_once(monkeypatch):
    monkeypatch.setattr(thread, "FAILURES_IN_A_ROW", 1)
    asked = {"prompt": "x", "max_tokens": 3}
    with scripted(truth) as served, ThreadPoolExecutor(3) as pool:
        collect, stepping = served.device.collect, threading.Event()

        def collecting(frame):
            stepping.set()
            return collect(frame)

        monkeypatch.setattr(served.device, "collect", collecting)
        served.device.failing = 1
        served.device.gate.clear()
        waiting = [pool.submit(served.post, "/v1/completions", asked)]
        assert stepping.wait(10)
        waiting.append(pool.submit(served.post, "/v1/completions", asked))
        until(lambda: served.engine.open_choices == 2)
        reading = asyncio.run_coroutine_threadsafe(served.engine.call(lambda engine: engine.idle), served.engine._loop)
        metrics = pool.submit(served.get, "/metrics")
        until(lambda: served.engine._commands.qsize() == 3)
        served.device.gate.set()
        for lost in waiting:
            assert lost.result().status_code == 500 and lost.result().json()["error"]["code"] == "answer_lost"
        with pytest.raises(AnswerLostError, match="has stopped"):
            reading.result(10)
        assert metrics.result().status_code == 200


def test_what_takes_too_long_is_ended_and_said_so():
    with scripted(truth, "serving.request_timeout_s=0.4", pause_s=0.02) as served:
        late = served.post("/v1/completions", LONG | {"stream": False})
        assert late.status_code == 408 and late.json()["error"]["code"] == "timeout"
        with streaming(served) as connection:
            assert '"code":"timeout"' in rest(connection)
        until(lambda: served.engine.open_choices == 0)
        kind = {"content-type": "application/json"}
        slow = httpx.post(served.url + "/v1/completions", content=trickle(), headers=kind, timeout=10)
        assert slow.status_code == 408 and slow.json()["error"]["code"] == "timeout"


def trickle():
    """A body that never ends."""
    yield b'{"prompt": "'
    for _ in range(16):
        threading.Event().wait(0.05)
        yield b"x"


def test_a_drain_answers_what_it_let_in_and_refuses_the_rest():
    with scripted(truth, pause_s=0.004) as served:
        with streaming(served, LONG | {"stream_options": {"include_usage": True}}) as connection:
            served.end()
            until(lambda: served.service.server.phase == "draining")
            refused = served.post("/v1/completions", LONG)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
            health = served.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            text = rest(connection)
        assert '"completion_tokens":200' in text and '"finish_reason":"length"' in text
        served.thread.join(10)
        assert served.outcome == [0]


def test_a_second_signal_does_not_wait():
    with scripted(truth, pause_s=0.02) as served, streaming(served):
        served.end()
        until(lambda: served.service.server.phase == "draining")
        served.end()
        served.thread.join(5)
        assert served.outcome == [1]


def test_it_listens_while_it_loads():
    begin = threading.Event()

    @contextmanager
    def load():
        begin.wait(10)
        with scripted_core() as core:
            yield core

    with running(Service(configured(), load), ready=False) as served:
        until(lambda: reachable(served))
        assert served.get("/health").json() == {"status": "loading"}
        loading = served.post("/v1/completions", LONG)
        assert loading.status_code == 503 and loading.json()["error"]["code"] == "loading"
        assert served.get("/v1/models").status_code == 503
        begin.set()
        until(lambda: served.get("/health").status_code == 200)


def test_what_cannot_be_loaded_ends_the_server_with_its_own_error():
    def load():
        raise PlanError("no room")

    with running(Service(configured(), load), ready=False) as served:  # pyright: ignore[reportArgumentType]
        served.thread.join(10)
        assert isinstance(served.outcome[0], PlanError)


def test_a_taken_port_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"serving.port={port} cannot be listened on: Address already in use"):
            Service(configured(f"serving.port={port}"), lambda: None)  # pyright: ignore[reportArgumentType]


def test_observers_see_every_step_and_every_answer():
    seen = Seen()
    with scripted(answering({"one": " two"}), "serving.mtp_draft_tokens=3", observer=seen) as served:
        served.post("/v1/completions", {"prompt": "one", "user": "ann"})
        served.post("/v1/completions", {"prompt": 1})
        until(lambda: len(seen.answers) == 2)
    assert seen.models == ["smollm2"]
    assert seen.answers == [("/v1/completions", 200), ("/v1/completions", 400)] and seen.received_routes == 2
    events = [delivery.event for step in seen.steps for delivery in step.deliveries]
    assert "".join(event.text for event in events) == " two"
    completion = events[-1].completion
    rounds = [row for step in seen.steps for delivery in step.deliveries for row in delivery.rounds]
    assert tuple(rounds) == completion.rounds


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.models, self.answers, self.steps, self.received_routes = [], [], [], 0

    def loaded(self, model):
        self.models.append(model.name)

    def received(self, route):
        self.received_routes += 1

    def answered(self, route, status, seconds):
        self.answers.append((route, status))

    def stepped(self, step):
        self.steps.append(step)


@contextmanager
def scripted_core():
    from tests.runtime.scripted_core import ScriptedCore
    from tests.server.serving import PacedDevice, byte_vocabulary

    device = PacedDevice(scripted_manifest(vocab=300), truth)
    yield ScriptedCore(device, byte_vocabulary(), configured("serving.prefix_cache=false"))


def reachable(served) -> bool:
    try:
        return served.get("/version").status_code == 200
    except httpx.ConnectError:
        return False
