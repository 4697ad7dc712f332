"""A core around the scripted device: a vocabulary of letters and a real configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flare.bench.simulation.scripted import (
    Clock,
    Costs,
    SimulatedDevice,
    Sizes,
    Truth,
    linear_costs,
    simulated_manifest,
)
from flare.config.compose import compose
from flare.config.config import Config

RECIPE = "smollm2"  # any recipe would do: the runtime reads its serving and sampling sections, and no weight exists


class LetterStream:
    """One letter per word; ids beyond the words have no text."""

    def __init__(self, words: int) -> None:
        self._words = words

    def push(self, token_id: int, /) -> str:
        return letter(token_id) if token_id < self._words else ""

    def flush(self) -> str:
        return ""


class Letters:
    """A vocabulary whose token t is the letter t mod 26."""

    def __init__(self, truth: Truth) -> None:
        self.size, self.eos_ids = truth.vocab, (truth.eos,)
        self._words = truth.words

    def encode(self, text: str) -> list[int]:
        return [(ord(character) - ord("a")) % 26 for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(letter(token) for token in ids if token < self._words)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:  # noqa: ARG002
        return self.encode("".join(message["content"] for message in messages))

    def stream(self) -> LetterStream:
        return LetterStream(self._words)


def letter(token: int) -> str:
    """The text of one word."""
    return chr(ord("a") + token % 26)


@dataclass(frozen=True)
class SimulatedCore:
    """What `flare.Engine` takes.

    Attributes:
        vocabulary: `Letters`, which answers what the runtime asks of a `Vocabulary`.
    """

    device: SimulatedDevice
    vocabulary: Any
    config: Config
    measured_costs: Mapping[tuple[int, int], float] = field(default_factory=dict)


def simulated_core(
    sizes: Sizes,
    truth: Truth,
    overrides: Sequence[str] = (),
    costs: Costs = linear_costs,
    checked: bool = True,
    device: type[SimulatedDevice] = SimulatedDevice,
) -> SimulatedCore:
    """A core of these sizes under `serving.*` and other overrides, with a clock of its own."""
    made = device(simulated_manifest(sizes), truth, costs, Clock(), checked)
    return SimulatedCore(made, Letters(truth), _config(tuple(overrides)))


@lru_cache(maxsize=64)
def _config(overrides: tuple[str, ...]) -> Config:
    """Composing takes a good part of a second."""
    return compose(RECIPE, overrides)
