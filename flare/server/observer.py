"""Who watches the server: hooks for requests and engine steps, all called on the event loop's thread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from flare.runtime.results import Event, Round
from flare.runtime.stats import EngineStats

if TYPE_CHECKING:
    from flare.server.server import ServedModel


class Delivery(NamedTuple):
    """What one engine step brought for one choice.

    Attributes:
        request: the engine's request id.
        event: None where the choice ended without one.
        rounds: those since the choice's last delivery.
        error: why the choice failed.
    """

    request: int
    event: Event | None
    rounds: tuple[Round, ...]
    error: Exception | None


class Step(NamedTuple):
    """One engine step that changed something, and the seconds it took."""

    deliveries: Sequence[Delivery]
    stats: EngineStats
    seconds: float


class Observer(Protocol):
    """Counts what happens; must not block."""

    def loaded(self, model: "ServedModel") -> None:
        """The core is ready."""
        ...

    def received(self, route: str) -> None:
        """A request to a generating route."""
        ...

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Its response is over; status 499 is a client that left."""
        ...

    def stepped(self, step: Step) -> None:
        """The engine moved on."""
        ...


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def loaded(self, model: "ServedModel") -> None:
        for observer in self._observers:
            observer.loaded(model)

    def received(self, route: str) -> None:
        for observer in self._observers:
            observer.received(route)

    def answered(self, route: str, status: int, seconds: float) -> None:
        for observer in self._observers:
            observer.answered(route, status, seconds)

    def stepped(self, step: Step) -> None:
        for observer in self._observers:
            observer.stepped(step)
