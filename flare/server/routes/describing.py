"""What the OpenAPI document says about routes that read their bodies themselves."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from flare.server.wire.chat import ChatBody
from flare.server.wire.completions import CompletionBody
from flare.server.wire.errors import refusals
from flare.server.wire.tokens import DetokenizeBody, TokenizeBody

BODIES: tuple[type[BaseModel], ...] = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)
PLACE = "#/components/schemas/{model}"

_OBJECT = {"schema": {"type": "object"}}
GENERATES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, or its events",
        "content": {"application/json": _OBJECT, "text/event-stream": {}},
    },
    **refusals(400, 401, 404, 408, 413, 415, 429, 500, 503),
}


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route."""
    schema = {"$ref": PLACE.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def body_schemas() -> dict[str, Any]:
    """The JSON schemas of all bodies and what they are made of, by name."""
    _, document = models_json_schema([(body, "validation") for body in BODIES], ref_template=PLACE)
    return document["$defs"]
