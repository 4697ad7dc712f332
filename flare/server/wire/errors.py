"""Refusals over HTTP, in the shape of OpenAI's error body."""

import re
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from flare.errors import FlareError

CLIENT_LEFT = 499  # not a status of HTTP: what logs and metrics say of a client that went away
BUSY_RETRY_S = 1
AWAY_RETRY_S = 5
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
SAID_IN_CONFIG = re.compile(r"sampling\.(\w+)")


class ApiError(Exception):
    """A request that is refused.

    Attributes:
        param: the field to blame, code: a word for programs; both may be None.
        headers: to send along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        kind = KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), self.status, self.headers)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every response that is no success."""

    error: ErrorDetail


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route's description says about its refusals."""
    return {status: {"model": ErrorBody, "description": HTTPStatus(status).phrase} for status in statuses}


def unavailable(phase: str) -> ApiError:
    """503: the server is there and takes nothing in."""
    reasons = {
        "loading": "The model is still loading: try again soon.",
        "draining": "The server is shutting down and takes no new requests.",
        "failed": "The engine has stopped; the server must be started again.",
    }
    return ApiError(503, reasons[phase], code=phase, headers={"Retry-After": str(AWAY_RETRY_S)})


def busy(waiting: int) -> ApiError:
    """429: the queue is full."""
    message = (
        f"{waiting} completions run or wait, and the queue takes no more: try again, or raise serving.queue_limit."
    )
    return ApiError(429, message, code="queue_full", headers={"Retry-After": str(BUSY_RETRY_S)})


def context_exceeded(field: str, prompt_tokens: int, max_tokens: int | None, context: int) -> ApiError:
    """400: prompt and output do not fit."""
    asked = f"{field} has {prompt_tokens} tokens" + (f" and {max_tokens} more are asked for" if max_tokens else "")
    message = f"This model's context ends at {context} tokens, output included, but {asked}."
    return ApiError(400, message, field, "context_length_exceeded")


def refused(error: FlareError, status: int = 400) -> ApiError:
    """What the engine says about a request; fields are called here as the client calls them."""
    named = SAID_IN_CONFIG.search(str(error))
    return ApiError(status, SAID_IN_CONFIG.sub(r"\1", str(error)), named.group(1) if named else None)
