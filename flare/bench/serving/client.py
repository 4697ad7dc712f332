"""A client of raw sockets: nothing is read that the server did not send, and it may hang up at any point.

Bodies are kept as they came and parsed afterwards, so that the client takes little time while it is measured.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LINE_BYTES = 1 << 20  # longest event that is read
END = b"[DONE]"


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


@dataclass
class Answer:
    """What came back.

    Attributes:
        events: data of the server-sent events, or the one body of a whole answer.
        ended: the response came to its own end; left: the client hung up instead.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    ended: bool = False
    left: bool = False

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def documents(self) -> list[dict[str, Any]]:
        """The parsed events, without the mark at the end of a stream."""
        return [json.loads(event) for event in self.events if event != END]


class Connection:
    """One kept-alive connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, address: Address) -> "Connection":
        return cls(*await asyncio.open_connection(address.host, address.port, limit=LINE_BYTES))

    async def post(self, path: str, body: dict[str, Any], leave_after: int | None = None) -> Answer:
        """Ask and read; `leave_after` so many pieces the client hangs up, after 0 without reading any.

        Raises:
            OSError, asyncio.IncompleteReadError: the server hung up.
        """
        answer = Answer()
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: flare\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await self._writer.drain()
        if leave_after == 0:
            return self._leave(answer)
        await self._read_head(answer)
        if answer.headers.get("transfer-encoding") != "chunked":
            answer.events.append(await self._reader.readexactly(int(answer.headers["content-length"])))
            answer.ended = True
            return answer
        held = b""
        while piece := await self._chunk():
            *whole, held = (held + piece).split(b"\n\n")
            answer.events += [event.removeprefix(b"data: ") for event in whole]
            if leave_after is not None and len(answer.events) >= leave_after:
                return self._leave(answer)
        answer.ended = not held and bool(answer.events) and answer.events[-1] == END
        return answer

    async def close(self) -> None:
        """Hang up politely."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _read_head(self, answer: Answer) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        answer.status = int(head[0].split(" ")[1])
        answer.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}

    async def _chunk(self) -> bytes:
        """One piece of a chunked body; empty at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    def _leave(self, answer: Answer) -> Answer:
        """Hang up without a word."""
        answer.left = True
        self._writer.transport.abort()
        return answer


async def post(address: Address, path: str, body: dict[str, Any], leave_after: int | None = None) -> Answer:
    """One request on a connection of its own."""
    connection = await Connection.to(address)
    try:
        return await connection.post(path, body, leave_after)
    finally:
        await connection.close()
