"""From bytes to a validated body: limits on size, depth and time first, then the schema, told in one sentence."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from flare.config.serving import Serving
from flare.server.wire.errors import ApiError, Code, shortened
from flare.server.wire.mistakes import mistake

Body = TypeVar("Body", bound=BaseModel)
QUICK_BYTES = 65_536  # bodies up to here are read within a millisecond or so
_INF_NAN = "NaN and Infinity are no numbers in JSON"
_HALF_PAIR = "a \\uD800 to \\uDFFF escape needs its other half behind it"


async def read(request: Request, model: type[Body], settings: Serving) -> Body:
    """The request's body as `model`.

    Raises:
        ApiError: 408, 413, 415, 499 or 400.
    """
    body = await _received(request, settings)
    if len(body) <= QUICK_BYTES:
        return _validated(body, model, settings)
    return await run_in_threadpool(_validated, body, model, settings)  # streams go on meanwhile


def _validated(body: bytes, model: type[Body], settings: Serving) -> Body:
    document = parsed(body, settings.max_json_depth)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise mistake(error, document, model) from error


async def _received(request: Request, settings: Serving) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        said = f"not {shortened(kind)}" if kind else "but no content type was sent"
        raise ApiError(Code.WRONG_MEDIA_TYPE, f"The body must be application/json, {said}.")
    message = f"The body is larger than {settings.max_body_bytes} bytes, which is serving.max_body_bytes: send less."
    too_large = ApiError(Code.BODY_TOO_LARGE, message)
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
        raise ApiError(Code.CLIENT_LEFT, "The client left before its body was in.") from None
    except TimeoutError:
        message = f"The body did not arrive within {settings.request_timeout_s:g} s."
        raise ApiError(Code.TIMEOUT, message) from None
    return bytes(body)


def parsed(body: bytes, most_depth: int) -> dict[str, Any]:
    """A JSON object of bounded depth.

    Raises:
        ApiError: 400.
    """
    try:
        document = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise _unparsed(body, str(error), most_depth) from error
    if not isinstance(document, dict):
        raise ApiError(Code.INVALID_JSON, f"The body must be a JSON object, not {shortened(document)}.")
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > most_depth:
            raise _too_deep(most_depth)
        level = [inner for outer in level for inner in _containers(outer)]
    return document


def _unparsed(body: bytes, reason: str, most_depth: int) -> ApiError:
    """Why text is not JSON, in the client's terms where the parser's are none."""
    if reason.startswith("recursion limit"):
        return _too_deep(most_depth)
    if "hex escape" in reason or "surrogate" in reason:
        reason = f"{reason}; {_HALF_PAIR}"
    elif reason.startswith("expected value"):
        with suppress(ValueError):
            from_json(body)  # takes NaN and Infinity
            reason = f"{_INF_NAN}: {reason}"
    return ApiError(Code.INVALID_JSON, f"The body is not JSON: {reason}.")


def _too_deep(most_depth: int) -> ApiError:
    return ApiError(Code.TOO_DEEP, f"The body is nested deeper than {most_depth} levels: flatten it.")


def _containers(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    """What may nest further; a list of a million numbers is told from its types alone."""
    inside = outer.values() if isinstance(outer, dict) else outer
    kinds = set(map(type, inside))
    return () if kinds.isdisjoint((dict, list)) else (each for each in inside if isinstance(each, dict | list))
