"""A section of the configuration: frozen, closed to unknown keys, every field bounded by its schema.

Defaults are written once, in `conf/`; the schema holds bounds and never a second default.
"""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """One mapping of the tree. Types are strict: `true` is no number and `"3"` is no count."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


LITERAL: dict[str, JsonValue] = {"literal": True}
"""`json_schema_extra` of free text: an override of it is taken character by character, in a sweep too."""


def alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself; what `Annotated` adds is dropped."""
    if hasattr(annotation, "__metadata__"):
        yield from alternatives(annotation.__origin__)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that lies below this key, or None where the key holds a value."""
    for member in alternatives(field.annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def holds(field: FieldInfo, kind: Any) -> bool:
    """Whether a value of this kind (`str`, `dict`, `type(None)`, …) is among the field's alternatives."""
    return any((get_origin(member) or member) is kind for member in alternatives(field.annotation))
