"""The parent's side of a server process: start it, ask it, weigh it, end it. Linux only: it reads /proc."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from flare.bench.serving.client import Address

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ANSWER_BYTES = 1 << 24  # longest answer that is read
IDLE_WAIT_S = 60.0


class Weight(NamedTuple):
    """What a process takes: resident bytes and open file descriptors."""

    rss_bytes: int
    descriptors: int


class ServerProcess:
    """A server in a process of its own.

    Attributes:
        about: url, model, context and vocab, as it announced them.
    """

    def __init__(self, process: asyncio.subprocess.Process, about: dict[str, Any]) -> None:
        self.about = about
        parts = urlsplit(about["url"])
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = Address(parts.hostname, parts.port)
        self._process = process

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command of `child`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()
        return await _line(self._process)

    async def settled(self) -> dict[str, Any]:
        """The audit once nothing runs and the last connection is gone.

        Raises:
            TimeoutError: something goes on running.
        """
        async with asyncio.timeout(IDLE_WAIT_S):
            while True:
                held = await self.ask({"do": "audit"})
                if held["idle"] and not held["requests_in_flight"] and not held["open_choices"]:
                    await asyncio.sleep(0.5)  # for sockets to be closed on both sides
                    return await self.ask({"do": "audit"})
                await asyncio.sleep(0.1)

    def weight(self) -> Weight:
        """Now."""
        home = Path("/proc") / str(self._process.pid)
        return Weight(int((home / "statm").read_text().split()[1]) * PAGE_BYTES, len(os.listdir(home / "fd")))

    def cpu_s(self) -> float:
        """CPU seconds of all its threads since it began."""
        fields = (Path("/proc") / str(self._process.pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    async def exit_status(self) -> int:
        """Once it has ended."""
        return await self._process.wait()


@asynccontextmanager
async def serving(recipe: str, overrides: Sequence[str]) -> AsyncIterator[ServerProcess]:
    """A server of a recipe; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flare.bench.serving.child", recipe, *overrides),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=ANSWER_BYTES,
    )
    try:
        yield ServerProcess(process, await _line(process))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next line that is JSON: native libraries may print others."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.startswith(b"{"):
            return json.loads(line)
    raise RuntimeError("The server process ended without an answer; what it said is above.")
