"""The checkpoint a configuration names, and the synthetic one it may ask to be written."""

from functools import partial
from pathlib import Path

from flare.checkpoint.source import Source
from flare.checkpoint.synthetic import Synthesis, synthesized
from flare.config.config import Config
from flare.errors import ConfigError


def source_of(config: Config) -> Source:
    """Where the weights come from.

    Raises:
        ConfigError: a synthetic checkpoint of a recipe that has none.
    """
    stored = config.checkpoint
    return Source(
        stored.source,
        stored.path,
        stored.id,
        stored.revision,
        stored.file,
        sha256=stored.sha256,
        bytes=stored.bytes,
        synthesis=_synthesis(config) if stored.source == "synthetic" else None,
    )


def written(config: Config) -> Path:
    """The folder of the recipe's synthetic checkpoint, written first unless it is there.

    Raises:
        ConfigError: the recipe has none, or checkpoint.source says otherwise.
        CheckpointError: it cannot be written.
    """
    if config.checkpoint.source != "synthetic":
        raise ConfigError(
            f"action=synthesize writes checkpoint.source=synthetic, but it is {config.checkpoint.source}; "
            "add checkpoint.source=synthetic"
        )
    return synthesized(_synthesis(config))


def _synthesis(config: Config) -> Synthesis:
    target, stored = config.recipe.target, config.checkpoint
    if not hasattr(target.type, "synthesize"):
        raise ConfigError(f"{config.recipe.name} writes no synthetic checkpoint; set another checkpoint.source")
    return Synthesis(
        recipe=config.recipe.name,
        settings=target.settings.model_dump(mode="json"),
        seed=stored.seed,
        write=partial(target.type.synthesize, target.settings),
        path=Path(stored.path).expanduser() if stored.path is not None else None,
    )
