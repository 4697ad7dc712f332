"""POST /tokenize and /detokenize, in the shapes vLLM has given them."""

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from flare.errors import FlareError
from flare.server.parsing.length import check_length
from flare.server.routes.asking import check_count, check_ids, check_model, encoded
from flare.server.routes.describing import takes
from flare.server.server import ServedModel, Server
from flare.server.wire.errors import refusals, refused
from flare.server.wire.reading import read
from flare.server.wire.tokens import DetokenizeBody, TokenizeBody

REFUSES = refusals(400, 401, 404, 408, 413, 415, 503)


class TokensBody(BaseModel):
    """Tokens of a text or conversation."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TextBody(BaseModel):
    """Text of tokens."""

    prompt: str


def router(server: Server) -> APIRouter:
    """The routes, for one server."""
    routes = APIRouter()

    @routes.post("/tokenize", openapi_extra=takes(TokenizeBody), responses=REFUSES)
    async def tokenize(request: Request) -> TokensBody:
        """Token ids of a text, or of a conversation as the model sees it."""
        model = server.ready_model()
        body = await read(request, TokenizeBody, server.settings)
        check_model(body.model, model)
        check_count(body.messages or (), server.settings)
        try:
            tokens = await run_in_threadpool(_tokens, body, model)
        except FlareError as error:
            raise refused(error, "messages" if body.prompt is None else "prompt") from error
        texts = [model.spelling.text(token) for token in tokens] if body.return_token_strs else None
        return TokensBody(count=len(tokens), max_model_len=model.extent.context, tokens=tokens, token_strs=texts)

    @routes.post("/detokenize", openapi_extra=takes(DetokenizeBody), responses=REFUSES)
    async def detokenize(request: Request) -> TextBody:
        """Text of token ids, without control tokens."""
        model = server.ready_model()
        body = await read(request, DetokenizeBody, server.settings)
        check_model(body.model, model)
        check_ids(body.tokens, model, "tokens")
        return TextBody(prompt=await run_in_threadpool(model.vocabulary.decode, body.tokens))

    return routes


def _tokens(body: TokenizeBody, model: ServedModel) -> list[int]:
    vocabulary, context = model.vocabulary, model.extent.context
    if body.prompt is not None:
        check_length(body.prompt, vocabulary, context, "prompt")
        return encoded(body.prompt, vocabulary, with_start=body.add_special_tokens is not False)
    messages = [message.plain() for message in body.messages or ()]
    text = vocabulary.render(messages, add_generation_prompt=body.add_generation_prompt is not False)
    check_length(text, vocabulary, context, "messages")
    return vocabulary.encode_rendered(text)
