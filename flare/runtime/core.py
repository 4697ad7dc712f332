"""The core an engine runs on, as far as the engine can see."""

from collections.abc import Mapping
from typing import Protocol

from flare.config.config import Config
from flare.contract.device import Device
from flare.contract.vocabulary import Vocabulary


class Core(Protocol):
    """What an engine runs on: `flare.prepare` makes one, tests script one."""

    @property
    def device(self) -> Device: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def config(self) -> Config: ...
    @property
    def measured_costs(self) -> Mapping[tuple[int, int], float]:
        """Seconds of a round per (batch capacity, width), as far as preparation timed them."""
        ...
