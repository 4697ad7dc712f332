"""Many streaming clients that come and go, for minutes: nothing may leak, every finished answer must add up.

Then SIGTERM under load: what was let in ends well, what comes later is told 503, the process ends with status 0.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flare.bench.serving.client import Answer, post
from flare.bench.serving.server_process import ServerProcess, Weight, serving
from flare.bench.serving.traffic import Request, Traffic, fault_of

PATH = "/v1/completions"
EVERY_S = 1.0  # between two weighings
MOST_MB_PER_MINUTE = 1.0
JUDGED_S = 120.0  # shorter soaks cannot tell a slope from a start
MEGABYTE = 1e6
KEPT = ("available_pages", "available_snapshots", "free_slots", "tasks", "waiting", "running", "launches_in_flight")
FAULTS_TOLD = 20
LAST_TOKENS = 96  # of each answer that SIGTERM finds running
SIGNAL_RACE = 2  # a request may overtake the signal


@dataclass(frozen=True)
class Wishes:
    """What to soak.

    Attributes:
        disconnect: share of requests whose client leaves early; last: clients whose answers SIGTERM finds running.
    """

    recipe: str
    overrides: Sequence[str]
    clients: int = 64
    seconds: float = 300.0
    disconnect: float = 0.3
    seed: int = 0
    last: int = 12


@dataclass
class Seen:
    """What clients saw.

    Attributes:
        outcomes: requests by how they ended; tokens: in complete answers.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    faults: list[str] = field(default_factory=list)

    def count(self, request: Request, answer: Answer) -> None:
        """One request is over."""
        if answer.left:
            self.outcomes["left"] += 1
        elif answer.status == 429 and answer.headers.get("retry-after"):
            self.outcomes["told to wait"] += 1
        elif fault := fault_of(request, answer):
            self.outcomes["faulty"] += 1
            self.faults.append(fault)
        else:
            self.outcomes["complete"] += 1
            self.tokens += sum(
                len(choice.get("token_ids") or ()) for each in answer.documents() for choice in each["choices"]
            )


async def soak(wishes: Wishes) -> dict[str, Any]:
    """The document of one soak; `failures` is empty where all is well."""
    async with serving(wishes.recipe, wishes.overrides) as server:
        await _traffic(server, wishes, Seen(), seconds=min(10.0, wishes.seconds / 5))  # lazy imports, first connections
        before, began = await server.settled(), server.weight()
        seen, samples = Seen(), list[tuple[float, Weight]]()
        weighing = asyncio.create_task(_weigh(server, samples))
        await _traffic(server, wishes, seen, wishes.seconds)
        weighing.cancel()
        after, ended = await server.settled(), server.weight()
        last = await _terminate(server, wishes)
    half = [(at_s, weight.rss_bytes) for at_s, weight in samples if wishes.seconds / 2 <= at_s <= wishes.seconds]
    slope = slope_mb_per_minute(half)  # not of the end, where fewer lanes run shapes that may never have run before
    failures = [f"{name} was {before[name]}, is {after[name]}" for name in KEPT if before[name] != after[name]]
    if began.descriptors != ended.descriptors:
        failures.append(f"{began.descriptors} file descriptors were open, {ended.descriptors} are")
    if slope is not None and wishes.seconds >= JUDGED_S and slope >= MOST_MB_PER_MINUTE:
        failures.append(f"memory grows by {slope:.2f} MB per minute")
    if not seen.outcomes["complete"] or (wishes.disconnect and not seen.outcomes["left"]):
        failures.append(f"the traffic was not what it should be: {dict(seen.outcomes)}")
    failures += seen.faults[:FAULTS_TOLD] + last.pop("failures")
    return {
        "clients": wishes.clients,
        "seconds": wishes.seconds,
        "disconnect": wishes.disconnect,
        "outcomes": dict(seen.outcomes),
        "tokens": seen.tokens,
        "before": before | began._asdict(),
        "after": after | ended._asdict(),
        "rss_mb_per_minute_second_half": slope,
        "rss_mb": [round(weight.rss_bytes / MEGABYTE, 1) for _, weight in samples],
        "most_descriptors": max((weight.descriptors for _, weight in samples), default=None),
        "sigterm": last,
        "failures": failures,
    }


def slope_mb_per_minute(samples: Sequence[tuple[float, int]]) -> float | None:
    """Of the least-squares line through seconds and bytes; None where there is no line."""
    if len(samples) < 2:
        return None
    mean_s = sum(at_s for at_s, _ in samples) / len(samples)
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in samples)
    return sum((at_s - mean_s) * size for at_s, size in samples) / spread * 60.0 / MEGABYTE if spread else None


async def _traffic(server: ServerProcess, wishes: Wishes, seen: Seen, seconds: float) -> None:
    """All clients at work until the time is over and their last answers are."""
    until_s = time.monotonic() + seconds

    async def client(number: int) -> None:
        traffic = Traffic(wishes.seed * 1_000_003 + number, server.about["vocab"], wishes.disconnect)
        while time.monotonic() < until_s:
            request = traffic.next()
            answer = await post(server.address, PATH, request.body, request.leave_after)
            seen.count(request, answer)
            await asyncio.sleep(float(answer.headers.get("retry-after", 0)))
            await asyncio.sleep(traffic.pause_s())

    async with asyncio.TaskGroup() as clients:
        for number in range(wishes.clients):
            clients.create_task(client(number))


async def _weigh(server: ServerProcess, samples: list[tuple[float, Weight]]) -> None:
    began_s = time.monotonic()
    while True:
        samples.append((time.monotonic() - began_s, server.weight()))
        await asyncio.sleep(EVERY_S)


async def _terminate(server: ServerProcess, wishes: Wishes) -> dict[str, Any]:
    """SIGTERM while answers are written."""
    body = {"max_tokens": LAST_TOKENS, "ignore_eos": True, "return_token_ids": True, "stream": True}
    asks = [
        Request(body | {"prompt": [index + 1] * 8, "stream_options": {"include_usage": True}}, None)
        for index in range(wishes.last)
    ]
    running = [asyncio.create_task(post(server.address, PATH, ask.body)) for ask in asks]
    while (await server.ask({"do": "audit"}))["open_choices"] < len(asks) and not any(task.done() for task in running):
        await asyncio.sleep(0.01)
    server.terminate()
    refusals: Counter[str] = Counter()
    while not all(task.done() for task in running):
        try:
            late = await post(server.address, PATH, {"prompt": [1], "max_tokens": 1})
        except (OSError, asyncio.IncompleteReadError):
            refusals["no connection"] += 1
        else:
            refusals[str(late.status)] += 1
        await asyncio.sleep(0.02)
    answers = await asyncio.gather(*running, return_exceptions=True)
    failures = [
        f"after SIGTERM: {fault}"
        for ask, answer in zip(asks, answers, strict=True)
        if (fault := repr(answer) if isinstance(answer, BaseException) else fault_of(ask, answer))
    ]
    status = await server.exit_status()
    if refusals["200"] > SIGNAL_RACE or not refusals["503"]:
        failures.append(f"requests after SIGTERM were answered {dict(refusals)}, not 503")
    if status:
        failures.append(f"the process ended with status {status}")
    return {"in_flight": len(asks), "late": dict(refusals), "exit_status": status, "failures": failures}
