"""Arguments that models write as bare text: what JSON value the schema of a tool makes of them."""

import json
from collections.abc import Mapping
from typing import Any

from flare.server.parsing.json_text import parsed
from flare.server.parsing.stream import NoCallError

KINDS = ("string", "integer", "number", "boolean", "null", "object", "array")
MOST_REFERENCES = 16  # followed from one schema to the next


def member_schema(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The schema of one property, local references followed; empty where nothing is said about it."""
    properties = schema.get("properties")
    member = properties.get(key) if isinstance(properties, Mapping) else None
    for _ in range(MOST_REFERENCES):
        if not isinstance(member, Mapping):
            return {}
        if not isinstance(reference := member.get("$ref"), str):
            return member
        member = _target(schema, reference)
    return {}


def kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types a value may have; empty where any may do."""
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if isinstance(stated, list):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    for name in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(name), list):
            found = [kinds(option) if isinstance(option, Mapping) else frozenset() for option in options]
            return frozenset().union(*found) if all(found) else frozenset()
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema[k] for k in ("const",) if k in schema]
    return frozenset(kind_of(value) for value in values)


def kind_of(value: object) -> str:
    """The JSON type of a parsed value."""
    if isinstance(value, bool):
        return "boolean"
    types = {str: "string", int: "integer", float: "number", type(None): "null", dict: "object", list: "array"}
    return types[type(value)]


def only_text(schema: Mapping[str, Any]) -> bool:
    """Whether the value can be nothing but a string."""
    return kinds(schema) == {"string"}


def typed(text: str, schema: Mapping[str, Any]) -> str:
    """The JSON text of a bare value.

    It is what the text spells, where that is of a type the schema allows; else the text itself, as a string. Without a
    type in the schema everything that is JSON counts. Python's `True`, `False` and `None` are understood.
    """
    allowed, bare = kinds(schema), text.strip()
    spelled = {"True": "true", "False": "false", "None": "null"}.get(bare, bare)
    try:
        value = parsed(spelled)
    except NoCallError:
        return json.dumps(text, ensure_ascii=False)
    kind = kind_of(value)
    if kind == "number" and "integer" in allowed and "number" not in allowed and float(value).is_integer():
        return str(int(value))
    fits = kind != "string" and (kind in allowed or (kind == "integer" and "number" in allowed))
    return spelled if fits or not allowed else json.dumps(text, ensure_ascii=False)


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    """What a local reference names, None where it names nothing."""
    target: Any = schema
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [""]:
        target = target.get(step) if isinstance(target, Mapping) else None
    return target
