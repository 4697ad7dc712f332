"""POST /v1/chat/completions."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from flare.errors import FlareError
from flare.server.engine_thread import Ask
from flare.server.parsing.answer_format import ChatAsk, ChatPrompt, Named, ToolSpec
from flare.server.replies.chat import ChatReply
from flare.server.routes.answering import Answer
from flare.server.routes.asking import (
    asked_n,
    check_count,
    check_model,
    check_output,
    check_prompt,
    check_sampled_ids,
    sampled,
    surroundings,
)
from flare.server.routes.describing import GENERATES, takes
from flare.server.routes.exchange import Exchange
from flare.server.server import ServedModel, Server
from flare.server.wire.chat import ChatBody, ToolChoiceBody
from flare.server.wire.errors import refused
from flare.server.wire.reading import read


def router(server: Server) -> APIRouter:
    """The route, for one server."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=takes(ChatBody), responses=GENERATES, response_class=Response)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        exchange = Exchange(server, "/v1/chat/completions")
        with exchange.taking_in():
            model = server.ready_model()
            exchange.body = body = await read(request, ChatBody, server.settings)
            check_model(body.model, model)
            check_count(body.messages, server.settings)
            check_sampled_ids(body, model)
            server.check_choices(1, asked_n(body, model))
            prompt = await run_in_threadpool(_prompt, body, model)
            check_prompt(prompt.token_ids, model, "messages")
            check_output([prompt.token_ids], body, model, "messages")
            wishes: dict[str, Any] = body.sampling() | {"n": asked_n(body, model)} | prompt.sampling
            ask = Ask((prompt.token_ids,), sampled(wishes))
            around = surroundings("chatcmpl", body, ask.prompts, server)
            reply = ChatReply(body, around, prompt, model.spelling)
        return Answer(exchange, ask, reply, bool(body.stream))

    return routes


def _prompt(body: ChatBody, model: ServedModel) -> ChatPrompt:
    try:
        return model.answer_format.prompt(chat_ask(body, model.extent.context))
    except FlareError as error:
        raise refused(error, "messages") from error


def chat_ask(body: ChatBody, context_tokens: int) -> ChatAsk:
    """What the model's format needs to know of a chat."""
    choice = body.tool_choice or "auto"
    return ChatAsk(
        messages=tuple(message.plain() for message in body.messages),
        context_tokens=context_tokens,
        tools=tuple(
            ToolSpec(
                tool.function.name,
                tool.function.parameters or {"type": "object"},
                tool.model_dump(exclude_none=True),
            )
            for tool in body.tools or ()
        ),
        tool_choice=Named(choice.function.name) if isinstance(choice, ToolChoiceBody) else choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        constraint=body.constraint(),
    )
