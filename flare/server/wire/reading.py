"""From bytes to a validated body: limits on size, depth and time first, then the schema, told in one sentence."""

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from flare.config.sentences import did_you_mean
from flare.config.serving import Serving
from flare.server.wire.errors import CLIENT_LEFT, ApiError

Body = TypeVar("Body", bound=BaseModel)
SHOWN_CHARACTERS = 80  # most of a refused value that a sentence quotes

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
    "too_short": "at least {min_length} entries long",
    "literal_error": "{expected}",
    "none_required": "null",
}


async def read(request: Request, model: type[Body], settings: Serving) -> Body:
    """The request's body as `model`.

    Raises:
        ApiError: 408, 413, 415, 499 or 400.
    """
    document = parsed(await _received(request, settings), settings.max_json_depth)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise mistake(error, model) from error


async def _received(request: Request, settings: Serving) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"The body must be application/json, not {kind or 'without a content type'}.")
    too_large = ApiError(413, f"The body is larger than {settings.max_body_bytes} bytes.", code="body_too_large")
    if int(request.headers.get("content-length", 0)) > settings.max_body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.request_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > settings.max_body_bytes:
                    raise too_large
    except ClientDisconnect:
        raise ApiError(CLIENT_LEFT, "The client left before its body was in.") from None
    except TimeoutError:
        raise ApiError(408, "The body did not arrive in time.", code="timeout") from None
    return bytes(body)


def parsed(body: bytes, most_depth: int) -> dict[str, Any]:
    """A JSON object of bounded depth.

    Raises:
        ApiError: 400.
    """
    try:
        document = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise ApiError(400, f"The body is not JSON: {error}.", code="invalid_json") from error
    if not isinstance(document, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > most_depth:
            raise ApiError(400, f"The body is nested deeper than {most_depth} levels.", code="too_deep")
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
    return document


def _inside(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def mistake(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """The first mistake of a body: the field, what it is, and what is allowed there."""
    details = error.errors(include_url=False)
    name = _path(details[0])
    same = [detail for detail in details if _path(detail) == name]
    kinds = {detail["type"] for detail in same}
    if "extra_forbidden" in kinds:
        top = len(details[0]["loc"]) == 1
        return ApiError(
            400,
            f"{name} is not supported.{did_you_mean(name, list(model.model_fields)) if top else ''}",
            name,
            "unsupported_field",
        )
    if "missing" in kinds:
        return ApiError(400, f"{name} is missing.", name, "missing_field")
    if "value_error" in kinds:
        reason = str(same[0].get("ctx", {}).get("error", same[0]["msg"]))
        return ApiError(400, reason, name or None, "invalid_value")
    allowed = " or ".join(dict.fromkeys(_allowed(detail) for detail in same))
    return ApiError(
        400, f"{name}={_shown(same[0]['input'])} is not allowed: it must be {allowed}.", name, "invalid_value"
    )


def _allowed(detail: ErrorDetails) -> str:
    phrase = _ALLOWED.get(detail["type"])
    context = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in detail.get("ctx", {}).items()
    }
    return phrase.format(**context) if phrase else detail["msg"].removeprefix("Input should be ")


def _path(detail: ErrorDetails) -> str:
    """A field as a client would write it: `messages[0].content`; what pydantic adds for unions is left out."""
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part == "[key]" or not part.isidentifier() or part[0].isupper() or part in _UNION_MEMBERS:
            continue
        else:
            path += f".{part}" if path else part
    return path


# How pydantic names the members of a union of plain types in a location.
_UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "none", "list", "dict"})


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
