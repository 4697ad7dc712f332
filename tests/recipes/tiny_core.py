"""A whole core over a tiny random checkpoint, through config, plan, loader and device; arms differ in `serving`."""

from dataclasses import replace
from pathlib import Path

from flare.build import Core, prepare
from flare.config.compose import compose
from tests.checkpoint.tiny import GEOMETRY, weights, write_folder


def tiny_overrides(folder: Path) -> list[str]:
    """Overrides that serve the tiny checkpoint in `folder`, written there."""
    write_folder(folder, weights(seed=4))
    sizes = [f"recipe.target.geometry.{name}={value}" for name, value in vars(GEOMETRY).items()]
    return [
        "checkpoint.source=path",
        f"checkpoint.path={folder}",
        *sizes,
        "recipe.target.geometry.context=512",
        "preparation.dtype=float32",
        "preparation.threads=1",
        "preparation.memory_bytes=2GiB",
    ]


def tiny_core(folder: Path, *overrides: str) -> Core:
    """A prepared core with every width, for up to four requests."""
    return prepare("smollm2", [*tiny_overrides(folder), "serving.concurrency=4", *overrides])


def arm(core: Core, folder: Path, *serving: str) -> Core:
    """The same core under other `serving.*` keys."""
    return replace(core, config=compose("smollm2", [*tiny_overrides(folder), "serving.concurrency=4", *serving]))
