"""What pydantic found wrong, as sentences: key, value, what is allowed, the nearest valid name."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from flare.config.section import holds, section_of

_ALLOWED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "greater than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least {min_length} character(s)",
    "string_pattern_mismatch": "text of the form {pattern}",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of at least {min_length}",
    "byte_size": "bytes, as a whole number or like 512MiB",
    "byte_size_unit": "bytes, as a whole number or like 512MiB",
}


def sentences(error: ValidationError, model: type[BaseModel]) -> str:
    """One line per mistake in the tree that `model` refused; a union's complaints about one key share a line."""
    lines: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for detail in error.errors():
        key = _key(detail["loc"], model)
        whole = _whole_sentence(detail, key, model)
        if whole:
            lines.setdefault(whole, [])
        else:
            lines.setdefault(key, []).append(_allowed(detail))
            values[key] = detail["input"]
    return "\n".join(
        f"{line}={shown(values[line])}, but it must be {' or '.join(dict.fromkeys(allowed))}" if allowed else line
        for line, allowed in lines.items()
    )


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """` Did you mean NAME?` for the nearest of the names, or nothing where none is near.

    A dotted name is near a longer one that ends like it: `temperature` finds `sampling.temperature`.
    """
    ending = [known for known in names if known.split(".")[-1] == name.split(".")[-1]]
    near = get_close_matches(name, names, n=1, cutoff=0.75) or ending
    if not near:
        last = {known.split(".")[-1]: known for known in reversed(names)}
        near = [last[found] for found in get_close_matches(name.split(".")[-1], list(last), n=1, cutoff=0.75)]
    return f" Did you mean {near[0]}?" if near else ""


def shown(value: Any) -> str:
    """A value as a person would type it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ",".join(shown(item) for item in value) + "]"
    return str(value)


def _whole_sentence(detail: ErrorDetails, key: str, model: type[BaseModel]) -> str | None:
    """The sentence of a mistake that has no "must be"."""
    kind = detail["type"]
    if kind == "extra_forbidden":
        above = key.rpartition(".")[0]
        siblings = [f"{above}.{name}" if above else name for name in _names_at(above, model)]
        return f"Unknown key '{key}'.{did_you_mean(key, siblings)}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "import_error":
        reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return f"{key}.type={shown(detail['input'])} cannot be imported: {reason}"
    if kind == "value_error":
        reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return f"{key}: {reason}" if key.startswith("recipe") else reason
    return None


def _allowed(detail: ErrorDetails) -> str:
    """What the refused value should have been."""
    if detail["type"] == "literal_error":
        return re.sub(r"'([^']*)'", r"\1", detail.get("ctx", {})["expected"])  # pydantic quotes each choice
    phrase = _ALLOWED.get(detail["type"])
    return phrase.format(**detail.get("ctx", {})) if phrase else detail["msg"].removeprefix("Input should be ")


def _key(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """The dotted key of a location: of what pydantic adds below a value, only list positions and mapping keys count."""
    names: list[str] = []
    section: type[BaseModel] | None = model
    value: FieldInfo | None = None
    for part in location:
        if value is None or isinstance(part, int) or (holds(value, dict) and part != "[key]"):
            names.append(str(part))
        field = section.model_fields.get(str(part)) if section else None
        section = section_of(field) if field else None
        if field is not None and section is None:
            value = field
    return ".".join(names)


def _names_at(key: str, model: type[BaseModel]) -> list[str]:
    """Names of the fields below a dotted key."""
    section: type[BaseModel] | None = model
    for name in key.split(".") if key else []:
        field = section.model_fields.get(name) if section else None
        section = section_of(field) if field else None
    return list(section.model_fields) if section else []
