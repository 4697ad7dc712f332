"""POST /v1/completions."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from flare.server.engine_thread import Ask
from flare.server.parsing.length import check_length
from flare.server.replies.completions import CompletionReply
from flare.server.routes.answering import Answer
from flare.server.routes.asking import (
    asked_n,
    check_ids,
    check_model,
    check_output,
    check_prompt,
    check_sampled_ids,
    encoded,
    sampled,
    surroundings,
)
from flare.server.routes.describing import GENERATES, takes
from flare.server.routes.exchange import Exchange
from flare.server.server import ServedModel, Server
from flare.server.wire.completions import CompletionBody
from flare.server.wire.errors import ApiError, Code
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
            check_sampled_ids(body, model)
            server.check_choices(len(body.prompts()), asked_n(body, model))
            prompts = await run_in_threadpool(_prompts, body, model)
            ids = [tokens for _, tokens in prompts]
            check_output(ids, body, model, "prompt")
            ask = Ask(tuple(ids), sampled(_sampling(body, model)))
            reply = CompletionReply(body, surroundings("cmpl", body, ids, server), prompts, model.spelling)
        return Answer(exchange, ask, reply, bool(body.stream))

    return routes


def _prompts(body: CompletionBody, model: ServedModel) -> list[tuple[str, list[int]]]:
    """Text and ids of each prompt."""
    given = body.prompts()
    single = isinstance(body.prompt, str) or given == [body.prompt]
    names = ["prompt"] if single else [f"prompt[{index}]" for index in range(len(given))]
    for name, prompt in zip(names, given, strict=True):  # before any of them costs time
        if isinstance(prompt, str):
            check_length(prompt, model.vocabulary, model.extent.context, name)
        else:
            check_prompt(prompt, model, name)
            check_ids(prompt, model, name)
    prompts: list[tuple[str, list[int]]] = []
    for name, prompt in zip(names, given, strict=True):
        if isinstance(prompt, str):
            prompts.append((prompt, encoded(prompt, model.vocabulary)))
            check_prompt(prompts[-1][1], model, name)
        else:
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
            raise ApiError(Code.UNSUPPORTED_VALUE, message, "echo")
        fields["prompt_logprobs"] = body.logprobs
    return fields
