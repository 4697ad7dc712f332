"""From a request to its response: whole or streamed, until it ends, fails, times out or its client leaves."""

import asyncio

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from flare.errors import FlareError
from flare.server.engine_thread import AnswerLostError, Answers, Ask
from flare.server.replies.reply import DONE, Reply, chunk
from flare.server.routes.exchange import ClientLeftError, Exchange
from flare.server.wire.errors import ApiError

LAST_WORD_S = 1.0  # to tell a client that does not read why its stream ends
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answer(Response):
    """The response to a generating request: runs it in the engine for as long as somebody waits for it.

    What goes wrong before the first token has a status of its own; a stream that has begun ends with an error event.
    """

    def __init__(self, exchange: Exchange, ask: Ask, reply: Reply, stream: bool) -> None:
        super().__init__()
        self._exchange = exchange
        self._ask = ask
        self._reply = reply
        self._stream = stream
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._exchange
        with exchange.server.present():
            try:
                answers = exchange.server.submit(self._ask)
                watch = asyncio.create_task(_watch(receive, answers))
                try:
                    async with asyncio.timeout_at(exchange.deadline):
                        await (
                            self._streamed(answers, send)
                            if self._stream
                            else self._whole(answers, scope, receive, send)
                        )
                finally:
                    watch.cancel()
                    answers.stop(ClientLeftError())
            except (FlareError, ApiError, AnswerLostError, ClientLeftError, TimeoutError) as error:
                told = exchange.failed(error)
                if not self._begun:
                    raise told from error
                await _last_word(told, send)
            finally:
                exchange.ended()

    async def _whole(self, answers: Answers, scope: Scope, receive: Receive, send: Send) -> None:
        while arrivals := await answers.next():
            for arrival in arrivals:
                self._reply.take(arrival)
        response = JSONResponse(self._reply.whole())
        self._begun = True
        await response(scope, receive, send)
        self._exchange.status = 200

    async def _streamed(self, answers: Answers, send: Send) -> None:
        reply = self._reply
        arrivals = await answers.next()
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        written = reply.opening()
        while arrivals:
            written += b"".join(map(reply.chunks, arrivals))
            if written:
                await send({"type": "http.response.body", "body": written, "more_body": True})
            arrivals, written = await answers.next(), b""
        await send({"type": "http.response.body", "body": reply.closing() + DONE, "more_body": False})
        self._exchange.status = 200


async def _last_word(told: ApiError, send: Send) -> None:
    """End a stream with what went wrong. Where nobody reads, the connection is closed under it."""
    try:
        async with asyncio.timeout(LAST_WORD_S):
            await send({"type": "http.response.body", "body": chunk(told.body()) + DONE, "more_body": False})
    except TimeoutError:
        return


async def _watch(receive: Receive, answers: Answers) -> None:
    """Stop the answers when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answers.stop(ClientLeftError())
