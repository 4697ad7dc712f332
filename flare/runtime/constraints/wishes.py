"""Which constraint a caller asks for: one of the sampling fields that name one, as text for the grammar library."""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from flare.errors import RequestError

# White space between the parts of JSON, bounded: a model that likes blanks must still come to an end.
BLANKS = r"[\x20\x0A\x0D\x09]{1,32}"
GUIDANCE = "x-guidance"  # where a schema may say otherwise, in llguidance's own words

FIELDS = ("grammar", "json_schema", "json_object", "regex")


class Wish(NamedTuple):
    """A constraint before it is compiled: the sampling field it came from, what its text is, and the text."""

    field: str
    kind: Literal["lark", "json_schema", "regex"]
    text: str


class SchemaText(str):
    """A schema as JSON text with bounded white space: what `schema_text` wrote, not to be read and written again."""


class Asking(Protocol):
    """The sampling fields that name a constraint; unset ones are None (or False)."""

    @property
    def grammar(self) -> str | None: ...
    @property
    def json_schema(self) -> Any: ...
    @property
    def json_object(self) -> bool | None: ...
    @property
    def regex(self) -> str | None: ...


def wished(asking: Asking) -> tuple[str, ...]:
    """The fields that ask for a constraint."""
    given = (asking.grammar, asking.json_schema, asking.json_object or None, asking.regex)
    return tuple(name for name, value in zip(FIELDS, given, strict=True) if value is not None)


def grammar_text(sampling: Asking) -> Wish | None:
    """The one constraint asked for; None when there is none.

    Raises:
        RequestError: two of them, or one that is no text of its kind.
    """
    names = wished(sampling)
    if len(names) > 1:
        listed = " and ".join(f"sampling.{name}" for name in names)
        raise RequestError(f"{listed} exclude each other: keep one.")
    if not names:
        return None
    if names[0] == "json_object":
        return Wish("json_object", "json_schema", json.dumps(bounded({"type": "object"})))
    if names[0] == "json_schema":
        return Wish("json_schema", "json_schema", schema_text(sampling.json_schema))
    text = sampling.regex if names[0] == "regex" else sampling.grammar
    if not isinstance(text, str) or not text:
        raise RequestError(f"sampling.{names[0]} must be a text that is not empty, not {text!r}.")
    return Wish(names[0], "regex" if names[0] == "regex" else "lark", text)


def bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with bounded white space, unless its own `x-guidance` says how much there is."""
    own = schema.get(GUIDANCE, {})
    if not isinstance(own, Mapping) or any(key.startswith("whitespace") for key in own):
        return dict(schema)
    return {**schema, GUIDANCE: {"whitespace_pattern": BLANKS, **own}}


def schema_text(schema: Any) -> SchemaText:
    """The schema as JSON text, whether it came as text or as the object it describes.

    Raises:
        RequestError: it is neither.
    """
    if isinstance(schema, SchemaText):
        return schema
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:  # brackets without end are no schema either
            raise RequestError(f"sampling.json_schema is not JSON: {error}.") from error
    if not isinstance(schema, Mapping | bool):
        raise RequestError(f"sampling.json_schema must be a JSON schema (an object), not {schema!r}.")
    try:
        return SchemaText(json.dumps(bounded(schema) if isinstance(schema, Mapping) else schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"sampling.json_schema cannot be written as JSON: {error}.") from error
