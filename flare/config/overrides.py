"""`key=value` words, checked against the schema before Hydra sees them.

Hydra answers an unknown key with the advice to add a plus, which turns a typing mistake into a setting that nobody
reads. Here every key must be a field of the schema; what passes is handed on as `++key=value`, so that a plus is never
needed and never harmful. Free text is quoted, so that a person may type any sentence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.errors import HydraException
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from flare.config.config import Config
from flare.config.library import Card, Library
from flare.config.recipe import Part, import_class
from flare.config.section import LITERAL, holds, section_of
from flare.config.sentences import did_you_mean, sentences
from flare.errors import ConfigError


@dataclass(frozen=True)
class Checked:
    """Overrides that Hydra may compose: as typed (sweeps whole), and expanded to the points of the sweep."""

    words: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]


def check(words: Sequence[str], library: Library, sweep: bool = False) -> Checked:
    """Check every override, of every point of a sweep, and put it into the form Hydra takes.

    Args:
        words: `key=value`, with or without plus; `recipe=NAME` chooses a recipe.
        library: folders that recipes and groups are chosen from.
        sweep: whether comma-separated values make several runs.

    Raises:
        ConfigError: one sentence about the first word that means nothing.
    """
    parsed = [_listed(_parsed(_quoted(word, sweep)), library) for word in words]
    for override in parsed:
        if override.is_sweep_override() and not sweep:
            key, _, values = (override.input_line or "").partition("=")
            raise ConfigError(f"{key}={values} names several values; add -m to run each, or write {key}=[{values}]")
    rewritten = [_rewritten(override, library) for override in parsed]
    task = [override for override in _parse_all(rewritten) if not override.is_hydra_override()]
    points = BasicSweeper.split_arguments(task, None)[0] if sweep else [[o.input_line or "" for o in task]]
    for point in points:
        overrides = _parse_all(point)
        card = _chosen(overrides, library)
        for override in overrides:
            _check_key(override, overrides, card, library)
    return Checked(tuple(rewritten), tuple(tuple(point) for point in points))


def _quoted(word: str, sweep: bool) -> str:
    """Quote the value of a key that holds text, unless it is null, quoted already, or a choice in a sweep."""
    key, equals, value = word.partition("=")
    field = _field(key.lstrip("+"))
    if not equals or field is None or not (holds(field, str) or holds(field, tuple)):
        return word
    literal = field.json_schema_extra == LITERAL
    if literal and not (value == "null" and key.lstrip("+") != "prompt"):
        return f"{key}={quoted(value)}"
    try:
        read = OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        return f"{key}={quoted(value)}"
    if read.is_sweep_override():
        return word if sweep else f"{key}={quoted(value)}"
    if literal or read.value() is None or isinstance(read.value(), list) or value[0] in "\"'":
        return word
    return f"{key}={quoted(value)}"


def quoted(text: str) -> str:
    """Text as a Hydra value that composes to exactly this text.

    OmegaConf unescapes backslashes before `${`; Hydra those before a quote mark and at the end.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r'(\\*)"', r'\1\1\\"', text)
    return '"' + re.sub(r"(\\+)\Z", r"\1\1", text) + '"'


def _parsed(word: str) -> Override:
    if "=" not in word and not word.startswith("~"):
        raise ConfigError(f"'{word}' is no key=value; a text to answer is given as prompt=\"{word}\"")
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        key = word.partition("=")[0]
        raise ConfigError(f"{word} cannot be read; a text with special signs is quoted twice: {key}='\"…\"'") from error


def _listed(override: Override, library: Library) -> Override:
    """A sweep as its list of values: `glob(...)` is looked up in the folders, an interval is refused."""
    key, value = override.key_or_group, override.value()
    if isinstance(value, Glob):
        return _parsed(f"{key}={','.join(value.filter(library.options(key)))}")
    if override.is_sweep_override() and not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line} has no list of values; give them, or range(start,stop,step)")
    return override


def _parse_all(words: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(words))


def _rewritten(override: Override, library: Library) -> str:
    """The override as Hydra takes it: `+recipe=`, a bare group, or `++key=`."""
    word, key = override.input_line or "", override.key_or_group
    if override.is_hydra_override() or override.type is OverrideType.DEL:
        return word
    bare = word.lstrip("+")
    if key == "recipe" and not isinstance(override.value(), dict):
        return f"+{bare}"
    return bare if key in library.groups() and not isinstance(override.value(), dict) else f"++{bare}"


def _chosen(overrides: Sequence[Override], library: Library) -> Card | None:
    """The card of the recipe that these overrides choose."""
    names = [str(o.value()) for o in overrides if o.key_or_group == "recipe" and not isinstance(o.value(), dict)]
    if len(names) > 1:
        raise ConfigError(f"Two recipes are named, {' and '.join(names)}; keep one")
    for name in names:
        check_recipe(name, library)
        return library.card(name)
    return None


def check_recipe(name: str, library: Library) -> None:
    """Raise a ConfigError that lists the recipes unless this is one."""
    names = library.options("recipe")
    if name not in names:
        raise ConfigError(f"Unknown recipe '{name}'.{did_you_mean(name, names)} Available: {', '.join(names)}")


def _check_key(override: Override, overrides: Sequence[Override], card: Card | None, library: Library) -> None:
    key = override.key_or_group
    if key == "recipe" and not isinstance(override.value(), dict):
        return
    if key in library.groups() and not isinstance(override.value(), dict):
        if override.value() not in (options := library.options(key)):
            raise ConfigError(f"Unknown {key} '{override.value()}'. Available: {', '.join(options)}")
        return
    names = key.split(".")
    tree = _tree(Config, names, {**_types(card), **_typed(overrides)})
    if not _known(tree, names):
        raise ConfigError(f"Unknown override '{key}'.{did_you_mean(key, list(_keys(tree)))}")


def _types(card: Card | None) -> dict[str, str | None]:
    return {"recipe.target": card.target, "recipe.drafter": card.drafter} if card else {}


def _typed(overrides: Sequence[Override]) -> dict[str, str | None]:
    """Classes that overrides themselves name, by the key of their part."""
    return {o.key_or_group.removesuffix(".type"): str(o.value()) for o in overrides if o.key_or_group.endswith(".type")}


def _tree(section: type[BaseModel], names: list[str], types: dict[str, str | None], above: str = "") -> dict[str, Any]:
    """Fields of a section as a nested mapping; None where a key holds a value.

    A target's or drafter's own class is imported only when the override's key leads into it.
    """
    tree: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        key, below = f"{above}{name}", section_of(field)
        if below is None:
            tree[name] = {} if holds(field, dict) else None
        elif not issubclass(below, Part):
            tree[name] = _tree(below, names, types, f"{key}.")
        else:
            tree[name] = {"type": None}
            if ".".join(names).startswith(f"{key}.") and names[-1] != "type" and (named := types.get(key)):
                tree[name] |= _tree(_config_of(named, key), names, types, f"{key}.")
    return tree


def _config_of(named: str, key: str) -> type[BaseModel]:
    try:
        return import_class(named).Config
    except ValidationError as error:
        raise ConfigError(f"{key}{sentences(error, Part)}") from error
    except ValueError as error:
        raise ConfigError(f"{key}.type: {error}") from error


def _known(tree: dict[str, Any] | None, names: list[str]) -> bool:
    """Whether the names lead to a field; below an open mapping ({}) any name does."""
    for name in names:
        if tree == {}:
            return True
        if tree is None or name not in tree:
            return False
        tree = tree[name]
    return True


def _keys(tree: dict[str, Any], above: str = "") -> list[str]:
    found = []
    for name, below in tree.items():
        found += [f"{above}{name}", *(_keys(below, f"{above}{name}.") if below else [])]
    return found


def _field(key: str) -> FieldInfo | None:
    """The schema's field at a dotted key, without opening the recipe's classes."""
    section: type[BaseModel] | None = Config
    field = None
    for name in key.split("."):
        field = section.model_fields.get(name) if section else None
        section = section_of(field) if field else None
    return field
