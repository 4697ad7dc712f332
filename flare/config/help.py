"""The text of `flare --help`: recipes, actions, every key and its default. No recipe is imported."""

from collections.abc import Mapping
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from flare.config.config import Config
from flare.config.library import Library
from flare.config.section import section_of
from flare.config.sentences import shown

_USAGE = """\
usage: flare +recipe=NAME [key=value ...]

  flare +recipe=smollm2 prompt="Write a haiku about the sea."
  flare +recipe=smollm2 action=plan serving.concurrency=4
  flare -m +recipe=smollm2 prompt="Why is the sky blue?" serving.fixed_width=1,2,4
  flare --config-dir my/conf +recipe=mine
"""
_FLAGS = """\
flags (Hydra's own pass through: --cfg job, --info, --hydra-help)
  -m, --multirun     one run for each combination of comma-separated values
  --config-dir DIR   folder with further recipes, as recipe/NAME.yaml
  --version          Flare's version
"""


def help_text(library: Library, actions: Mapping[str, str]) -> str:
    """Everything a person can type.

    Args:
        library: folders whose recipes are listed.
        actions: name → what it does.
    """
    blocks = [
        _USAGE,
        _recipes(library),
        "actions\n" + _columns([(f"action={name}", "", what) for name, what in actions.items()]),
    ]
    top = {name: field for name, field in Config.model_fields.items() if section_of(field) is None}
    blocks.append("top\n" + _rows(top, library.top(), ""))
    for name, field in Config.model_fields.items():
        section = section_of(field)
        if section is not None and name != "recipe":
            blocks.append(
                f"{name}: {field.description}\n" + _rows(section.model_fields, library.defaults(name), f"{name}.")
            )
    return "\n".join([*blocks, _FLAGS]).rstrip()


def _recipes(library: Library) -> str:
    rows = [("name", "drafts (max)", "")]
    for name in library.options("recipe"):
        card = library.card(name)
        rows.append((name, f"{card.default_drafts} ({card.maximum_drafts})", card.summary))
    return "recipes, with the drafts a round offers by default and at most\n" + _columns(rows)


def _rows(fields: Mapping[str, Any], defaults: Mapping[str, Any], above: str) -> str:
    return _columns([(f"{above}{name}", shown(defaults[name]), field.description) for name, field in fields.items()])


def _columns(rows: list[tuple[str, str, str]]) -> str:
    """Rows of three, the first two padded to a common width, the third wrapped to the terminal's."""
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    indent = " " * (first + second + 6)
    width = max(get_terminal_size((120, 24)).columns, len(indent) + 40)
    lines = (
        wrap(f"  {name:<{first}}  {value:<{second}}  {text}", width, subsequent_indent=indent)
        for name, value, text in rows
    )
    return "".join(f"{line}\n" for row in lines for line in row)
