"""What all routes share: the phase of the server, the model it serves, and who may come in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from flare.config.config import Config
from flare.config.serving import Serving
from flare.contract.manifest import Extent
from flare.contract.vocabulary import Vocabulary
from flare.server.engine_thread import Answers, Ask, EngineThread
from flare.server.observer import Observer, Observers
from flare.server.parsing.answer_format import AnswerFormat
from flare.server.replies.spelling import Spelling
from flare.server.wire.errors import ApiError, Code, busy, unavailable

Phase = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True)
class ServedModel:
    """The one model of a server.

    Attributes:
        created: seconds since 1970; fingerprint: the same for every core that was prepared alike.
        scored: prompts can be scored.
    """

    name: str
    config: Config
    vocabulary: Vocabulary
    extent: Extent
    scored: bool
    created: int
    fingerprint: str
    answer_format: AnswerFormat
    spelling: Spelling


@dataclass
class Server:
    """The state of a running server; lives on the event loop's thread.

    Attributes:
        model, engine: None while the core is loading.
        api_key: what clients must show; None lets everyone in.
        in_flight: HTTP requests that were let in and are not answered.
        drained: called whenever the last of these is answered.
    """

    settings: Serving
    api_key: str | None = None
    observer: Observer = field(default_factory=Observers)
    phase: Phase = "loading"
    model: ServedModel | None = None
    engine: EngineThread | None = None
    in_flight: int = 0
    drained: Callable[[], None] = lambda: None

    def opened(self, model: ServedModel, engine: EngineThread) -> None:
        """The core is ready."""
        self.model, self.engine = model, engine
        self.observer.loaded(model)
        if self.phase == "loading":
            self.phase = "ready"

    def ready_model(self) -> ServedModel:
        """The model.

        Raises:
            ApiError: 503 while there is none.
        """
        if self.model is None:
            raise unavailable(self.phase)
        return self.model

    @contextmanager
    def present(self) -> Iterator[None]:
        """Holds off the end of a drain while an answer is written."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.drained()

    @property
    def room(self) -> int:
        """Completions that may run or wait at once."""
        return self.settings.concurrency + self.settings.queue_limit

    def check_choices(self, prompts: int, n: int) -> None:
        """Raise ApiError 400 for more completions than could ever be queued."""
        if prompts * n > self.room:
            asked = f"{prompts * n} completions at once ({prompts} prompt(s), n={n})"
            message = f"This asks for {asked}, at most {self.room} are taken: split it."
            raise ApiError(Code.TOO_MANY_COMPLETIONS, message, "prompt" if prompts > self.room else "n")

    def submit(self, ask: Ask) -> Answers:
        """Queue a request in the engine.

        Raises:
            ApiError: 503 outside the ready phase, 429 where the queue is full.
        """
        if self.engine is None or self.phase != "ready":
            raise unavailable(self.phase)
        if self.engine.open_choices + ask.choices > self.room:
            raise busy(self.engine.open_choices)
        return self.engine.submit(ask)
