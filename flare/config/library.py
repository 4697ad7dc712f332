"""The `conf/` folders and the recipes in them, read as plain YAML: no Hydra, no import of a recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import flare
from flare.errors import ConfigError

HOME = Path(flare.__file__).resolve().parent.parent / "conf"
"""Flare's own folder; it lies beside the package in a checkout and in an installed wheel alike."""


@dataclass(frozen=True)
class Card:
    """What a recipe's YAML says without importing its classes."""

    name: str
    default_drafts: int  # the recipe's own serving.mtp_draft_tokens
    maximum_drafts: int  # its drafter's max_depth, 0 without a drafter
    target: str | None  # "package.module:Class"
    drafter: str | None
    summary: str  # the first comment after the package header


@dataclass(frozen=True)
class Library:
    """Configuration folders, Flare's own before the user's: as in Hydra, the first that holds a file wins."""

    folders: tuple[Path, ...]

    @classmethod
    def beside(cls, config_dir: str | Path | None) -> "Library":
        """Flare's own folder, followed by the user's.

        Raises:
            ConfigError: the user's folder does not exist.
        """
        if config_dir is None:
            return cls((HOME,))
        folder = Path(config_dir).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is no folder; it holds recipe/NAME.yaml")
        return cls((HOME, folder))

    def options(self, group: str) -> list[str]:
        """Names that can be chosen in a group, nested folders included."""
        roots = [folder / group for folder in self.folders]
        return sorted(
            {path.relative_to(root).with_suffix("").as_posix() for root in roots for path in root.rglob("*.yaml")}
        )

    def groups(self) -> list[str]:
        """Names of the groups other than `recipe`."""
        return sorted({path.name for folder in self.folders for path in folder.iterdir() if path.is_dir()} - {"recipe"})

    def card(self, recipe: str) -> Card:
        """Read one recipe, with what it inherits from other recipes."""
        tree = self._inherited(recipe)
        parts = tree.get("recipe") or {}
        target, drafter = parts.get("target") or {}, parts.get("drafter") or {}
        default = (tree.get("serving") or {}).get("mtp_draft_tokens")
        return Card(
            name=recipe,
            default_drafts=self.defaults("serving")["mtp_draft_tokens"] if default is None else default,
            maximum_drafts=drafter.get("max_depth", 0),
            target=target.get("type"),
            drafter=drafter.get("type"),
            summary=_summary(self._file("recipe", recipe).read_text()),
        )

    def defaults(self, group: str) -> dict[str, Any]:
        """What a group's `default` says."""
        return yaml.safe_load(self._file(group, "default").read_text())

    def top(self) -> dict[str, Any]:
        """What `config.yaml` itself says."""
        return yaml.safe_load((HOME / "config.yaml").read_text())

    def _file(self, group: str, name: str) -> Path:
        return next(path for folder in self.folders if (path := folder / group / f"{name}.yaml").is_file())

    def _inherited(self, recipe: str) -> dict[str, Any]:
        """A recipe's own tree over those its defaults list names, `_self_` last unless it says otherwise."""
        own = yaml.safe_load(self._file("recipe", recipe).read_text()) or {}
        entries = [entry for entry in own.pop("defaults", []) if isinstance(entry, str)]
        tree: dict[str, Any] = {}
        for entry in entries if "_self_" in entries else [*entries, "_self_"]:
            _merge(tree, own if entry == "_self_" else self._inherited(entry.removeprefix("/recipe/").split("@")[0]))
        return tree


def _merge(tree: dict[str, Any], later: dict[str, Any]) -> None:
    for key, value in later.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _summary(text: str) -> str:
    """The first comment that is no package header, up to the command that follows it."""
    for line in text.splitlines():
        if line.startswith("# ") and "@package" not in line:
            return line[2:].split("   ")[0].strip()
    return ""
