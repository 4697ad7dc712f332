"""Flare: language models served with speculative decoding.

core = flare.prepare("smollm2", ["serving.concurrency=2"])
with flare.Engine(core) as engine:
    print(engine.generate("Write a haiku.", flare.Sampling(max_tokens=64)).text)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flare.build import Core, prepare
    from flare.errors import FlareError
    from flare.runtime.engine import Engine
    from flare.runtime.sampling import Sampling

__all__ = ["Core", "Engine", "FlareError", "Sampling", "prepare"]

_HOMES = {
    "Core": "flare.build",
    "Engine": "flare.runtime.engine",
    "FlareError": "flare.errors",
    "Sampling": "flare.runtime.sampling",
    "prepare": "flare.build",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `flare --help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flare' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
