"""Servers on real sockets for tests: over a scripted device, or over any core, with what a test wants to wait for."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx
import openai

from flare.config.compose import compose
from flare.config.config import Config
from flare.contract.frames import Completion
from flare.contract.manifest import Manifest
from flare.contract.vocabulary import Vocabulary
from flare.server.observer import Observer
from flare.server.service import Service
from tests.runtime.constraints.words import END, byte_tokenizer
from tests.runtime.scripted_core import ScriptedCore, mixing, saying
from tests.runtime.scripted_device import ScriptedDevice, Truth, scripted_manifest

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
WAIT_S = 60.0  # for what comes at once, unless the machine is busy


def byte_vocabulary() -> Vocabulary:
    """Token b is byte b; 256 ends a text."""
    return Vocabulary(byte_tokenizer(), eos_ids=(END,), chat_template=TEMPLATE)


class PacedDevice(ScriptedDevice):
    """A scripted device that takes its time, counts what is submitted, and fails when told to.

    Attributes:
        pause_s: how long each launch takes; gate: launches wait until it is set.
        submitted: generation rounds submitted so far; failing: launches that are still to fail.
    """

    def __init__(self, manifest: Manifest, truth: Truth, pause_s: float = 0.0) -> None:
        super().__init__(manifest, truth)
        self.pause_s = pause_s
        self.gate = threading.Event()
        self.gate.set()
        self.submitted = self.failing = 0

    def submit(self, graph: int, frame: int) -> None:
        self.submitted += self.manifest.graphs[graph].kind in ("decode", "speculative")
        super().submit(graph, frame)

    def poll(self, frame: int) -> bool:
        return super().poll(frame) and self.gate.is_set()

    def collect(self, frame: int) -> Completion:
        self.gate.wait(WAIT_S)
        time.sleep(self.pause_s)
        completion = super().collect(frame)
        if self.failing:
            self.failing -= 1
            raise OSError("the device is on fire")
        return completion


@lru_cache(maxsize=32)
def configured(*overrides: str) -> Config:
    """A configuration; composing takes a good part of a second."""
    plain = ("serving.port=0", "serving.concurrency=4", "sampling.temperature=1", "sampling.max_tokens=64")
    return compose("smollm2", [*plain, *overrides])


@dataclass
class Served:
    """A running server.

    Attributes:
        device: of a scripted server.
    """

    service: Service[Any]
    thread: threading.Thread
    device: Any
    outcome: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.service.url

    @property
    def engine(self) -> Any:
        return self.service.server.engine

    def client(self, **keys: Any) -> openai.OpenAI:
        """The official client, which neither retries nor waits."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=keys.pop("api_key", "any"), max_retries=0, timeout=WAIT_S
        )

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=WAIT_S, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=WAIT_S, **more)

    def end(self) -> None:
        """What a signal does."""
        self.service.end_from_elsewhere()

    def wait(self, holds: Callable[[], bool]) -> None:
        """Until something holds."""
        until(holds)


def until(holds: Callable[[], bool], seconds: float = WAIT_S) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@contextmanager
def running(service: Service[Any], device: Any = None, ready: bool = True, seconds: float = WAIT_S) -> Iterator[Served]:
    """The service on a thread of its own, ended and joined at the end."""

    def run() -> None:
        try:
            served.outcome.append(service.run())
        except Exception as error:  # noqa: BLE001  the test looks at it
            served.outcome.append(error)

    served = Served(service, threading.Thread(target=run), device)
    served.thread.start()
    try:
        if ready:
            until(lambda: service.server.phase == "ready" or bool(served.outcome), seconds)
        yield served
    finally:
        for _ in range(2):
            if served.thread.is_alive():
                served.end()
                served.thread.join(0.5 if served.service.server.in_flight else WAIT_S)
        served.thread.join(WAIT_S)
        assert not served.thread.is_alive(), "the server does not end"


@contextmanager
def scripted(
    truth: Truth,
    *overrides: str,
    manifest: Manifest | None = None,
    pause_s: float = 0.0,
    api_key: str | None = None,
    observer: Observer | None = None,
) -> Iterator[Served]:
    """A server over a scripted device."""
    config = configured("serving.prefix_cache=false", *overrides)
    device = PacedDevice(manifest or scripted_manifest(vocab=300, context=512), truth, pause_s)
    core = ScriptedCore(device, byte_vocabulary(), config)
    service = Service(config, lambda: nullcontext(core), api_key, observer)  # pyright: ignore[reportArgumentType]
    with running(service, device) as served:
        yield served


def answering(answers: dict[str, str]) -> Truth:
    """A truth that answers each of these prompts with its text; prompts may be the start of what is asked."""

    def truth(prefix: Sequence[int]) -> int:
        text = bytes(token for token in prefix if token < 256).decode(errors="replace")
        for prompt, answer in answers.items():
            if text.startswith(prompt):
                return saying(answer, len(prompt.encode()), END)(prefix)
        return END

    return truth


__all__ = ["END", "Served", "answering", "byte_vocabulary", "configured", "mixing", "running", "scripted", "until"]
