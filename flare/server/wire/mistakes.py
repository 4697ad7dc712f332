"""What pydantic found wrong with a body, as one sentence: the field, what it is, and what is allowed there."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from flare.config.sentences import did_you_mean
from flare.server.wire.errors import ApiError, Code, shortened

CONFLICT = "conflict"
KEY = "[key]"  # how a location says that a key is meant, not its value

_ALLOWED = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "greater than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_too_short": "a string of at least {min_length} character(s)",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "of the form {pattern}",
    "string_unicode": "Unicode text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "too_long": "no longer than {max_length} entries",
    "too_short": "a list that is not empty",
    "literal_error": "{expected}",
    "none_required": "null",
    "union_tag_invalid": "one of {expected_tags}",
}
# Said of a value of another kind than this member of a union takes; not worth saying where another member takes it.
_OTHER_KIND = frozenset({"int_type", "float_type", "bool_type", "string_type", "list_type", "dict_type", "model_type"})


class Found(NamedTuple):
    """A mistake and where it is: the parts of its place in the body, without what pydantic adds for unions."""

    detail: ErrorDetails
    place: tuple[int | str, ...]


def conflict(field: str, reason: str) -> PydanticCustomError:
    """A mistake between fields, to be blamed on one of them; the reason is a whole sentence."""
    return PydanticCustomError(CONFLICT, "{reason}", {"field": field, "reason": reason})


def mistake(error: ValidationError, document: Any, model: type[BaseModel]) -> ApiError:
    """The first mistake of a body; of the members of a union, what the one says that came furthest."""
    found = [_found(detail, document) for detail in error.errors(include_url=False)]
    deepest = max((each for each in found if each.place[:1] == found[0].place[:1]), key=lambda each: len(each.place))
    same = [each.detail for each in found if each.place == deepest.place]
    kinds = {detail["type"] for detail in same}
    if CONFLICT in kinds:
        context = next(detail.get("ctx", {}) for detail in same if detail["type"] == CONFLICT)
        name = _written((*deepest.place, *([context["field"]] if context["field"] else [])))
        return ApiError(Code.INVALID_VALUE, context["reason"], name)
    if "extra_forbidden" in kinds:
        return _unsupported(deepest.place, model)
    if "missing" in kinds:
        name = _written(deepest.place)
        return ApiError(Code.MISSING_FIELD, f"{name} is missing.", name)
    tag = next((detail for detail in same if detail["type"].startswith("union_tag_")), None)
    if tag is not None:
        return _untagged(tag, deepest.place)
    return _not_allowed(same, deepest)


def _unsupported(place: Sequence[int | str], model: type[BaseModel]) -> ApiError:
    name = _written(place)
    near = did_you_mean(str(place[0])[:64], list(model.model_fields)) if len(place) == 1 else ""
    return ApiError(Code.UNSUPPORTED_FIELD, f"{name} is not supported.{near}", name)


def _untagged(detail: ErrorDetails, place: Sequence[int | str]) -> ApiError:
    """An object whose kind is named by one of its fields, which is missing or names none."""
    context = detail.get("ctx", {})
    name = _written((*place, str(context.get("discriminator", "type")).strip("'")))
    if detail["type"] == "union_tag_not_found":
        return ApiError(Code.MISSING_FIELD, f"{name} is missing.", name)
    message = f"{name}={shortened(context['tag'])} is not allowed: it must be one of {context['expected_tags']}."
    return ApiError(Code.INVALID_VALUE, message, name)


def _not_allowed(same: Sequence[ErrorDetails], found: Found) -> ApiError:
    if KEY in found.detail["loc"]:
        name, shown = _written(found.place[:-1]), shortened(found.detail["input"])
        return ApiError(Code.INVALID_VALUE, f"{name} has the key {shown}: keys must be token ids, in digits.", name)
    close = [detail for detail in same if detail["type"] not in _OTHER_KIND]
    if all(detail["type"] == "literal_error" for detail in close):
        close = same
    allowed = " or ".join(dict.fromkeys(map(_allowed, close)))
    name, shown = _written(found.place), shortened(same[0]["input"])
    return ApiError(Code.INVALID_VALUE, f"{name}={shown} is not allowed: it must be {allowed}.", name)


def _allowed(detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "float_type" and isinstance(value, int) and not isinstance(value, bool):
        return "a number that float64 holds"  # a whole number of more than 308 digits
    phrase = _ALLOWED.get(kind)
    if kind == "greater_than_equal" and 0 < detail["ctx"]["ge"] < 1e-6:  # pyright: ignore[reportTypedDictNotRequiredAccess]
        phrase = "greater than 0, and at least {ge}"
    context = {
        name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in detail.get("ctx", {}).items()
    }
    return phrase.format(**context) if phrase else detail["msg"].removeprefix("Input should be ")


def _found(detail: ErrorDetails, document: Any) -> Found:
    """The place of a mistake, told from names of union members by what the document holds."""
    place: list[int | str] = []
    here = document
    for index, part in enumerate(detail["loc"]):
        inside = part in here if isinstance(here, dict) else isinstance(here, list) and isinstance(part, int)
        lacking = detail["type"] == "missing" and index == len(detail["loc"]) - 1
        if inside or lacking:
            place.append(part)
            here = here[part] if inside else None  # pyright: ignore  a key of an object, an index of a list
    return Found(detail, tuple(place))


def _written(place: Sequence[int | str]) -> str:
    """A place as a client would write it: `messages[0].content`, `logit_bias["7"]`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not text:
            text = shortened(part)[1:].removesuffix('"')
        else:
            text += f".{part}" if part.isidentifier() and len(part) <= 64 else f"[{shortened(part)}]"
    return text
