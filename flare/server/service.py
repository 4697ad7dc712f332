"""A server from its first socket to its last answer: listen, load, serve, drain.

It listens before the core is ready, so that clients learn that it is coming. The core is built and driven on one thread
of its own; the event loop runs on the thread that calls `run`.
"""

import asyncio
import hashlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar

import uvicorn

from flare.config.config import Config
from flare.contract.manifest import Manifest
from flare.errors import ConfigError, RequestError
from flare.runtime.core import Core
from flare.runtime.engine import Engine
from flare.runtime.sampling import Sampling
from flare.server.app import create_app
from flare.server.engine_thread import EngineThread
from flare.server.observer import Observer, Observers
from flare.server.parsing import answer_format
from flare.server.replies.spelling import Spelling
from flare.server.server import ServedModel, Server

CoreType = TypeVar("CoreType", bound=Core)

LAST_ROUND_S = 60.0  # longest wait for the device to finish what it does
BROKEN_S = 2.0  # the same for an engine that has stopped by itself
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service(Generic[CoreType]):
    """One server and its engine.

    Attributes:
        url: where it listens.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], AbstractContextManager[CoreType]],
        api_key: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Args: load: builds the core; runs on the engine's thread.

        Raises:
            ConfigError: serving.host and serving.port cannot be listened on.
        """
        self.server = Server(config.serving, api_key, observer or Observers())
        self._config = config
        self._load = load
        self._socket = _listening(config.serving.host, config.serving.port)
        self.url = _url(config.serving.host, self._socket.getsockname()[1])
        self._error: Exception | None = None
        self._announce: Callable[[str, CoreType], None] | None = None
        self._endings = 0

    def run(self, announce: Callable[[str, CoreType], None] | None = None) -> int:
        """Serve until SIGTERM or SIGINT and the last answer; a second signal does not wait for it.

        Args:
            announce: called once when the core is ready.

        Returns:
            The exit status: 0 when every request that was let in was answered.

        Raises:
            FlareError: the core cannot be built.
            Exception: the engine has stopped.
        """
        self._announce = announce
        cut_off = asyncio.run(self._main())
        if self._error is not None:
            raise self._error
        return 1 if cut_off else 0

    def end(self) -> None:
        """Drain and end; called again, end at once. For the event loop's thread."""
        self._endings += 1
        if self._endings == 1:
            self.server.phase = "draining"
            self._end_when_answered()
        else:
            self._serving.cancel()

    def end_from_elsewhere(self) -> None:
        """`end`, from any thread."""
        self._loop.call_soon_threadsafe(self.end)

    async def _main(self) -> bool:
        """Returns whether requests were cut off."""
        self._loop = asyncio.get_running_loop()
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                create_app(self.server), lifespan="off", log_config=None, access_log=False, server_header=False
            )
        )
        self._serving = asyncio.create_task(self._uvicorn.serve([self._socket]))
        engine = threading.Thread(target=self._drive, name="flare-engine", daemon=True)
        with self._signals():
            engine.start()
            try:
                await self._serving
            except asyncio.CancelledError:
                if self._endings < 2:
                    raise
        loading = self.server.engine is None and self._error is None
        if self.server.engine is not None:
            self.server.engine.stop()
        if not loading:  # nobody can interrupt the reading of weights; the process may end under it
            await asyncio.to_thread(engine.join, LAST_ROUND_S if self._error is None else BROKEN_S)
        return self._serving.cancelled()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in SIGNALS:
                self._loop.remove_signal_handler(number)

    def _drive(self) -> None:
        """The engine's thread."""
        with self._reporting(), self._load() as core, Engine(core) as engine:
            with suppress(RequestError):  # every request that asks for a constraint is told so
                engine.load_grammars()
                engine.compile(Sampling())  # where the configuration constrains all of them
            thread = EngineThread(engine, self._loop, self.server.observer)
            self._post(partial(self._opened, core, _served(self._config, core), thread))
            with self._reporting():  # before the engine is closed, which may take its time
                thread.run()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """What ends the engine's thread is raised by `run`, the first of it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  raised on the other thread
            self._error = self._error or error
            self._post(self._failed)

    def _post(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _opened(self, core: CoreType, model: ServedModel, thread: EngineThread) -> None:
        self.server.opened(model, thread)
        if self._announce is not None:
            self._announce(self.url, core)

    def _failed(self) -> None:
        self.server.phase = "failed"
        self._end_when_answered()

    def _end_when_answered(self) -> None:
        def end() -> None:
            self._uvicorn.should_exit = True

        self.server.drained = end
        if not self.server.in_flight:
            end()


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its own idea of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield


def _served(config: Config, core: Core) -> ServedModel:
    """What is said about a core's model."""
    manifest = core.device.manifest
    _ = core.vocabulary.token_lengths  # takes a while the first time: not at the expense of a request
    return ServedModel(
        name=config.model_name(),
        config=config,
        vocabulary=core.vocabulary,
        extent=manifest.extent,
        scored=bool(manifest.of_kind("scored_prefill")),
        created=int(time.time()),
        fingerprint=_fingerprint(config, manifest),
        answer_format=answer_format(config, core.vocabulary),
        spelling=Spelling(core.vocabulary),
    )


def _fingerprint(config: Config, manifest: Manifest) -> str:
    """The same for every core of one recipe with the same graphs and numbers."""
    text = json.dumps([config.recipe.name, config.dtype(), manifest.to_json()])
    return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"serving.host={host} with serving.port={port} cannot be listened on: {error.strerror or error}."
        ) from error


def _url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
