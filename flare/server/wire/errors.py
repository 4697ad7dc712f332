"""Refusals over HTTP, in the shape of OpenAI's error body."""

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import JSONResponse

from flare.errors import FlareError

CLIENT_LEFT = 499  # not a status of HTTP: what logs and metrics say of a client that went away
SHOWN_CHARACTERS = 80  # most of a refused value that a sentence quotes
BUSY_RETRY_S = 1
AWAY_RETRY_S = 5
SAID_IN_CONFIG = re.compile(r"sampling\.(\w+)")


class Code(StrEnum):
    """The words by which programs tell refusals apart, as `error.code`; `STATUSES` has the status of each."""

    CLIENT_LEFT = "client_left"
    INVALID_JSON = "invalid_json"
    TOO_DEEP = "too_deep"
    MISSING_FIELD = "missing_field"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_FIELD = "unsupported_field"
    UNSUPPORTED_VALUE = "unsupported_value"
    CONTEXT_LENGTH = "context_length_exceeded"
    TOO_MANY_MESSAGES = "too_many_messages"
    TOO_MANY_COMPLETIONS = "too_many_completions"
    OUT_OF_MEMORY = "capacity_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    UNKNOWN_PATH = "unknown_path"
    UNKNOWN_MODEL = "model_not_found"
    WRONG_METHOD = "method_not_allowed"
    TIMEOUT = "timeout"
    BODY_TOO_LARGE = "body_too_large"
    WRONG_MEDIA_TYPE = "unsupported_media_type"
    QUEUE_FULL = "queue_full"
    INTERNAL = "internal_error"
    ANSWER_LOST = "answer_lost"
    LOADING = "loading"
    DRAINING = "draining"
    FAILED = "failed"


USERS_MISTAKE = 400
STATUSES: Final = {
    Code.CLIENT_LEFT: CLIENT_LEFT,
    Code.INVALID_API_KEY: 401,
    Code.UNKNOWN_PATH: 404,
    Code.UNKNOWN_MODEL: 404,
    Code.WRONG_METHOD: 405,
    Code.TIMEOUT: 408,
    Code.BODY_TOO_LARGE: 413,
    Code.WRONG_MEDIA_TYPE: 415,
    Code.QUEUE_FULL: 429,
    Code.INTERNAL: 500,
    Code.ANSWER_LOST: 500,
    Code.LOADING: 503,
    Code.DRAINING: 503,
    Code.FAILED: 503,
}
"""The status of each code; those that are left out are mistakes in a request, 400."""

KINDS: Final = {401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}
"""`error.type` of a status; of others it is `server_error` from 500 on and `invalid_request_error` below."""


class ApiError(Exception):
    """A request that is refused.

    Attributes:
        param: the field to blame, as a client would write it; None where it is no field's fault.
        headers: to send along.
    """

    def __init__(
        self, code: Code, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """Of the response."""
        return STATUSES.get(self.code, USERS_MISTAKE)

    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        kind = KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code.value}}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), self.status, self.headers)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: Code


class ErrorBody(BaseModel):
    """The body of every response that is no success."""

    error: ErrorDetail


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route's description says about its refusals."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


def unavailable(phase: str) -> ApiError:
    """503: the server is there and takes nothing in."""
    reasons = {
        Code.LOADING: "The model is still loading: try again soon.",
        Code.DRAINING: "The server is shutting down and takes no new requests.",
        Code.FAILED: "The engine has stopped; the server must be started again.",
    }
    return ApiError(Code(phase), reasons[Code(phase)], headers={"Retry-After": str(AWAY_RETRY_S)})


def busy(waiting: int) -> ApiError:
    """429: the queue is full."""
    message = (
        f"{waiting} completions run or wait, and the queue takes no more: try again, or raise serving.queue_limit."
    )
    return ApiError(Code.QUEUE_FULL, message, headers={"Retry-After": str(BUSY_RETRY_S)})


def context_exceeded(field: str, prompt_tokens: int, context: int, least: bool = False) -> ApiError:
    """400: a prompt leaves no room for output. `least`: it has that many tokens or more."""
    message = (
        f"This model's context ends at {context} tokens, output included, but {field} has "
        f"{'at least ' if least else ''}{prompt_tokens} tokens: shorten it."
    )
    return ApiError(Code.CONTEXT_LENGTH, message, field)


def output_exceeds(named: str, max_tokens: int, field: str, prompt_tokens: int, context: int) -> ApiError:
    """400: a prompt fits, the output that is asked for does not."""
    message = (
        f"This model's context ends at {context} tokens, output included: {field} has {prompt_tokens} tokens, so "
        f"{named} may be at most {context - prompt_tokens}, not {shortened(max_tokens)}."
    )
    return ApiError(Code.CONTEXT_LENGTH, message, named)


def refused(
    error: FlareError, blamed: str | None = None, written: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> ApiError:
    """What the engine says about a request; fields are called here as the client calls them.

    Args:
        blamed: the field at fault where the engine names none.
        written: the fields of the request that became one of the engine's, where they are called otherwise; which one
            of several is at fault is unknown.
    """

    def fields(found: re.Match[str]) -> Sequence[str]:
        return written.get(found.group(1), [found.group(1)])

    named = SAID_IN_CONFIG.search(str(error))
    if named is not None:
        blamed = fields(named)[0] if len(fields(named)) == 1 else None
    message = SAID_IN_CONFIG.sub(lambda found: " and ".join(fields(found)), str(error))
    return ApiError(Code.INVALID_VALUE, message, blamed)


def shortened(value: Any, most: int = SHOWN_CHARACTERS) -> str:
    """A refused value as a client would write it, cut where it is long."""
    if isinstance(value, str):
        value = value[: most + 1]
    text = ""
    for piece in _WRITER.iterencode(value):
        text += piece
        if len(text) > most:
            return text[:most] + "…"
    return text


_WRITER = json.JSONEncoder(ensure_ascii=False)
