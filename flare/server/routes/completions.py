"""POST /v1/completions."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from flare.runtime.sampling import Sampling
from flare.server.engine_thread import Ask
from flare.server.replies.completions import CompletionReply
from flare.server.routes.answering import Answer
from flare.server.routes.asking import asked_n, check_context, check_ids, check_model, encoded, surroundings
from flare.server.routes.describing import GENERATES, takes
from flare.server.routes.exchange import Exchange
from flare.server.server import ServedModel, Server
from flare.server.wire.completions import CompletionBody
from flare.server.wire.errors import ApiError
from flare.server.wire.reading import read


def router(server: Server) -> APIRouter:
    """The route, for one server."""
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=takes(CompletionBody), responses=GENERATES, response_class=Response)
    async def completions(request: Request) -> Response:
        """Continue text or token ids."""
        exchange = Exchange(server, "/v1/completions")
        with exchange.taking_in():
            model = server.ready_model()
            exchange.body = body = await read(request, CompletionBody, server.settings)
            check_model(body.model, model)
            prompts = await run_in_threadpool(_prompts, body, model)
            ids = [tokens for _, tokens in prompts]
            check_context(ids, body.max_tokens, model, "prompt")
            ask = Ask(tuple(ids), Sampling(**_sampling(body, model)))
            reply = CompletionReply(body, surroundings("cmpl", body, ids, server), prompts, model.spelling)
        return Answer(exchange, ask, reply, bool(body.stream))

    return routes


def _prompts(body: CompletionBody, model: ServedModel) -> list[tuple[str, list[int]]]:
    """Text and ids of each prompt."""
    prompts: list[tuple[str, list[int]]] = []
    for prompt in body.prompts():
        if isinstance(prompt, str):
            prompts.append((prompt, encoded(prompt, model.vocabulary)))
        else:
            check_ids(prompt, model, "prompt")
            prompts.append((model.vocabulary.decode(prompt), prompt))
    return prompts


def _sampling(body: CompletionBody, model: ServedModel) -> dict[str, Any]:
    fields = body.sampling() | {"n": asked_n(body, model)}
    if body.logprobs is None:
        return fields
    fields["logprobs"] = body.logprobs
    if body.echo:
        if not model.scored:
            message = "echo with logprobs needs a server that can score prompts: preparation.prompt_logprobs=true."
            raise ApiError(400, message, "echo", "unsupported_value")
        fields["prompt_logprobs"] = body.logprobs
    return fields
