"""Recipe and overrides → Config: Hydra composes, pydantic validates, a mistake is one sentence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from flare.config.config import Config
from flare.config.library import HOME, Library
from flare.config.overrides import check, check_recipe, quoted
from flare.config.sentences import sentences
from flare.errors import ConfigError


def compose(recipe: str | None, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Config:
    """The validated configuration of one run; Hydra's global state is left as it was.

    Args:
        recipe: name of a file in `conf/recipe`, without suffix; None where an override `recipe=NAME` says it.
        overrides: `key=value`, as on the command line.
        config_dir: a folder with further recipes and groups.

    Raises:
        ConfigError: a recipe, key or value that means nothing; one sentence per mistake.
    """
    library = Library.beside(config_dir)
    if recipe is not None:
        check_recipe(recipe, library)
    words = list(overrides) if recipe is None else [f"recipe={recipe}", *overrides]
    checked = check(words, library)
    return compose_points(checked.points, library)[0]


def compose_points(points: Sequence[Sequence[str]], library: Library) -> list[Config]:
    """Compose and validate each list of checked overrides; the first mistake ends it."""
    search = [f"hydra.searchpath=[{quoted(f'file://{folder}')}]" for folder in library.folders[1:]]
    with _private_hydra():
        composed = [hydra.compose("config", [*search, *point], return_hydra_config=True) for point in points]
    configs = []
    for tree in composed:
        job = tree.hydra
        with open_dict(tree):
            del tree["hydra"]
        configs.append(validated(tree, job))
    return configs


def validated(tree: DictConfig, job: Any) -> Config:
    """What pydantic makes of a composed tree.

    The recipe's own serving.mtp_draft_tokens is noted beside it, since overrides may have replaced that value.

    Args:
        tree: the composed configuration, without Hydra's node.
        job: Hydra's node: what was chosen, and the folders it was chosen from.
    """
    library = Library(tuple(Path(source.path) for source in job.runtime.config_sources if source.schema == "file"))
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    if "recipe" not in job.runtime.choices:
        raise ConfigError(no_recipe(library))
    card = library.card(job.runtime.choices.recipe)
    plain.setdefault("recipe", {}).setdefault("default_draft_tokens", card.default_drafts)
    try:
        return Config.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(sentences(error, Config)) from error


def no_recipe(library: Library) -> str:
    """What to say to someone who named no recipe."""
    return f"Name a recipe: flare +recipe=NAME   ({', '.join(library.options('recipe'))})"


def sentence_of(error: HydraException | OmegaConfBaseException) -> str:
    """Hydra's complaint as one line."""
    return " ".join(str(error).split())


@contextmanager
def _private_hydra() -> Iterator[None]:
    """Hydra set up on Flare's folder, inside a running Hydra job too; its singletons are put back afterwards."""
    before = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(HOME), job_name="flare", version_base="1.3"):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(sentence_of(error)) from error
    finally:
        Singleton.set_state(before)
