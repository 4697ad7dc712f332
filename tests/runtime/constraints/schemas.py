"""A seeded generator of JSON schemas with short answers, and an independent judge of answers."""

import json
import re
from random import Random
from typing import Any

TIGHT = {"whitespace_flexible": False}  # a random model would fill every blank it is allowed
WORDS = ["red", "green", "blue", "he", "hell", "wheel", "", "ünï", 'a"b', "new\nline"]


def schema(seed: int) -> dict[str, Any]:
    """The schema of a seed; its answers have at most about a hundred characters."""
    draw = Random(seed)
    return {**_value(draw, depth=2), "x-guidance": TIGHT}


def _value(draw: Random, depth: int) -> dict[str, Any]:
    kinds = [_boolean, _null, _integer, _enum, _constant, _string]
    if depth:
        kinds += [_object, _object, _array, _either]
    return draw.choice(kinds)(draw, depth)


def _boolean(draw: Random, depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _null(draw: Random, depth: int) -> dict[str, Any]:
    return {"type": "null"}


def _integer(draw: Random, depth: int) -> dict[str, Any]:
    low = draw.randint(-20, 20)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 500)}


def _enum(draw: Random, depth: int) -> dict[str, Any]:
    return {"enum": draw.sample([*WORDS, 7, None, True], draw.randint(1, 4))}


def _constant(draw: Random, depth: int) -> dict[str, Any]:
    return {"const": draw.choice(WORDS)}


def _string(draw: Random, depth: int) -> dict[str, Any]:
    if draw.random() < 0.5:
        return {"type": "string", "minLength": draw.randint(0, 2), "maxLength": draw.randint(2, 5)}
    return {"type": "string", "pattern": draw.choice(["^[a-c]{1,4}$", "^x[0-9]{2}y?$", "^(ab|cd)+e$"]), "maxLength": 7}


def _object(draw: Random, depth: int) -> dict[str, Any]:
    names = draw.sample(["name", "hello", "count", "colour", "tags", "x y"], draw.randint(0, 3))
    required = [name for name in names if draw.random() < 0.8]
    return {
        "type": "object",
        "properties": {name: _value(draw, depth - 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _array(draw: Random, depth: int) -> dict[str, Any]:
    low = draw.randint(0, 2)
    return {"type": "array", "items": _value(draw, depth - 1), "minItems": low, "maxItems": low + draw.randint(0, 2)}


def _either(draw: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(draw, depth - 1) for _ in range(2)]}


def is_valid(text: str, rule: dict[str, Any]) -> bool:
    """Whether the text is one JSON value that the schema allows."""
    try:
        return _fits(json.loads(text), rule)
    except json.JSONDecodeError:
        return False


def _fits(value: Any, rule: dict[str, Any]) -> bool:
    if "anyOf" in rule:
        return any(_fits(value, each) for each in rule["anyOf"])
    if "const" in rule or "enum" in rule:
        allowed = [rule["const"]] if "const" in rule else rule["enum"]
        return any(type(value) is type(each) and value == each for each in allowed)
    return _CHECKS[rule["type"]](value, rule)


def _is_integer(value: Any, rule: dict[str, Any]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and rule["minimum"] <= value <= rule["maximum"]


def _is_string(value: Any, rule: dict[str, Any]) -> bool:
    if not isinstance(value, str) or not rule.get("minLength", 0) <= len(value) <= rule["maxLength"]:
        return False
    return "pattern" not in rule or re.search(rule["pattern"], value) is not None


def _is_object(value: Any, rule: dict[str, Any]) -> bool:
    if not isinstance(value, dict) or set(value) - set(rule["properties"]) or set(rule["required"]) - set(value):
        return False
    return all(_fits(value[name], rule["properties"][name]) for name in value)


def _is_array(value: Any, rule: dict[str, Any]) -> bool:
    if not isinstance(value, list) or not rule["minItems"] <= len(value) <= rule["maxItems"]:
        return False
    return all(_fits(each, rule["items"]) for each in value)


_CHECKS = {
    "boolean": lambda value, rule: isinstance(value, bool),
    "null": lambda value, rule: value is None,
    "integer": _is_integer,
    "string": _is_string,
    "object": _is_object,
    "array": _is_array,
}
