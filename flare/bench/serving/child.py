"""The server under test, in a process of its own, with a door beside HTTP: one JSON command a line on standard input.

`python -m flare.bench.serving.child RECIPE [key=value …]`. `{"do": "audit"}` answers what is held and checks that it is
held once; `{"do": "drive", …}` runs a workload on the very engine that serves, without HTTP. Answers are JSON lines.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from flare.build import Core, build
from flare.config.compose import compose
from flare.runtime.engine import Engine
from flare.runtime.requests import Request
from flare.runtime.sampling import Sampling
from flare.server.service import Service


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM."""
    config = compose(arguments[0], ["serving.port=0", *arguments[1:]])
    service = Service(config, lambda: build(config))

    def announce(url: str, core: Core) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=_listen, args=(service, loop), daemon=True).start()
        extent = core.manifest.extent
        _say({"url": url, "context": extent.context, "vocab": extent.vocab, "model": config.model_name()})

    return service.run(announce)


def _listen(service: Service[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Carry out commands one by one until standard input closes."""
    for line in sys.stdin:
        _say(asyncio.run_coroutine_threadsafe(_answer(service, json.loads(line)), loop).result())


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _answer(service: Service[Any], command: dict[str, Any]) -> dict[str, Any]:
    server = service.server
    assert server.engine is not None
    if command.pop("do") == "drive":
        return await server.engine.call(lambda engine: drive(engine, **command))
    held = await server.engine.call(audit)
    return held | {
        "tasks": len(asyncio.all_tasks()),
        "requests_in_flight": server.in_flight,
        "open_choices": server.engine.open_choices,
    }


def audit(engine: Engine) -> dict[str, Any]:
    """What an engine holds; pages and snapshots that cached prefixes hold count as available.

    Raises:
        AssertionError: something is held by nobody, or twice.
    """
    engine.check()
    stats, memory = engine.stats(), engine.scheduler.memory
    cached_pages = cached_snapshots = 0
    if memory.prefixes is not None:
        cached_pages = int(memory.pages.only_held_by(memory.prefixes.held))
        cached_snapshots = len(set(memory.prefixes.references()[1]))
    return {
        "idle": engine.idle,
        "waiting": stats.waiting,
        "running": stats.running,
        "launches_in_flight": stats.launches_in_flight,
        "available_pages": stats.free_pages + cached_pages,
        "available_snapshots": stats.free_snapshots + cached_snapshots,
        "free_slots": stats.free_slots,
        "cached_prefixes": stats.cached_prefixes,
        "preemptions": stats.preemptions,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
    }


def drive(engine: Engine, prompts: list[list[int]], sampling: dict[str, Any], clients: int) -> dict[str, Any]:
    """Complete all prompts, `clients` at a time, each followed by the next; the in-process half of a comparison.

    Returns:
        seconds, the process's CPU seconds meanwhile, and the token ids of every prompt.
    """
    waiting, running = deque(enumerate(prompts)), dict[int, Request]()
    ids: list[list[int]] = [[] for _ in prompts]
    began_s, cpu_s = time.perf_counter(), _cpu_s()
    while waiting or running:
        while waiting and len(running) < clients:
            index, prompt = waiting.popleft()
            (running[index],) = engine.submit(prompt, Sampling(**sampling))
        engine.step()
        for index, request in list(running.items()):
            ids[index] += [token for event in request.take_events() for token in event.token_ids]
            if request.finished:
                del running[index]
    return {"seconds": time.perf_counter() - began_s, "cpu_seconds": _cpu_s() - cpu_s, "ids": ids}


def _cpu_s() -> float:
    """Of all threads."""
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
