"""Composition of the smollm2 recipe with a fake target and drafter, so that no test here imports torch."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flare.config.compose import compose
from flare.config.config import Config

FAKE = ("recipe.target.type=fake_recipe:Target", "recipe.drafter.type=fake_recipe:Drafter")


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """`configure("key=value", …)`: the Config of smollm2 with these overrides."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return lambda *overrides: compose("smollm2", [*FAKE, *overrides])
