"""No dead flags: each key of the schema is read somewhere as an attribute."""

import ast
from functools import cache
from pathlib import Path

import pytest

import flare
from flare.config.config import Config
from flare.config.section import section_of

SCHEMA = {"preparation", "serving", "sampling", "checkpoint", "recipe", "section"}
KEYS = [
    f"{name}.{key}"
    for name, field in Config.model_fields.items()
    if (section := section_of(field)) is not None
    for key in section.model_fields
]


@cache
def attributes_read() -> set[str]:
    """Names read as `something.name` in flare/ outside the schema's own files."""
    root = Path(flare.__file__).parent
    names: set[str] = set()
    for path in root.rglob("*.py"):
        if path.parent.name == "config" and path.stem in SCHEMA:
            continue
        tree = ast.parse(path.read_text())
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names


@pytest.mark.parametrize("key", KEYS)
def test_the_key_is_read(key):
    assert key.split(".")[-1] in attributes_read()
