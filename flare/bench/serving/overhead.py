"""What the server costs: the same workload through HTTP and on the same engine in-process, in pairs of both orders.

One process holds one core. In-process, its engine's own thread completes the prompts, four at a time; through HTTP a
client in another process does, over four kept-alive connections that stream. Prefixes and history are not kept between
runs, so that no arm learns from the other.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flare.bench.serving.client import Answer, Connection
from flare.bench.serving.server_process import ServerProcess, serving
from flare.bench.statistics import bootstrap

FAIR = ("serving.prefix_cache=false", "serving.history_drafts=false")
TOPICS = (
    *("the tides of the sea", "how bread is baked", "the moons of Jupiter", "a small village in winter"),
    *("how to mend a bicycle", "the history of paper", "why leaves turn red", "the rules of chess"),
    *("a letter to an old friend", "the life of bees", "how rainbows form", "a walk through a market"),
    *("the work of a lighthouse", "learning to swim", "the sound of a forest", "what clouds are made of"),
)


@dataclass(frozen=True)
class Wishes:
    """What to compare; pairs: of one run each way."""

    recipe: str
    overrides: Sequence[str]
    clients: int = 4
    pairs: int = 6
    tokens: int = 64


@dataclass(frozen=True)
class Run:
    """One arm once: seconds, the server's CPU seconds, generated token ids of each prompt."""

    seconds: float
    cpu_s: float
    ids: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    def document(self) -> dict[str, float]:
        """Rates."""
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            "cpu_ms_per_token": 1e3 * self.cpu_s / self.tokens,
        }


async def overhead(wishes: Wishes) -> dict[str, Any]:
    """The document of one comparison: every run, the ratio of rates with its interval, CPU time per token."""
    async with serving(wishes.recipe, (*FAIR, *wishes.overrides)) as server:
        prompts = [await _tokens(server, f"Here is a long and clear text about {topic}.") for topic in TOPICS]
        arms = {"engine": _in_process, "server": _over_http}
        runs: dict[str, list[Run]] = {name: [] for name in arms}
        for run in arms.values():
            await run(server, wishes, prompts)  # warm-up: kernels, the policy's costs, connections
        for pair in range(wishes.pairs):
            for name in sorted(arms, reverse=bool(pair % 2)):
                runs[name].append(await arms[name](server, wishes, prompts))
        server.terminate()
        await server.exit_status()
    ratios = [
        (http.tokens / http.seconds) / (engine.tokens / engine.seconds)
        for http, engine in zip(runs["server"], runs["engine"], strict=True)
    ]
    extra = [
        1e3 * (http.cpu_s / http.tokens - engine.cpu_s / engine.tokens)
        for http, engine in zip(runs["server"], runs["engine"], strict=True)
    ]
    same = [one == other for one, other in zip(runs["server"][-1].ids, runs["engine"][-1].ids, strict=True)]
    return {
        "clients": wishes.clients,
        "prompts": len(prompts),
        "ratio_tokens_per_s": _interval(ratios),
        "extra_cpu_ms_per_token": _interval(extra),
        "same_texts": f"{sum(same)} of {len(same)}",
        "runs": {name: [run.document() for run in each] for name, each in runs.items()},
    }


def _interval(samples: Sequence[float]) -> dict[str, Any]:
    estimate = bootstrap(samples)
    return {} if estimate is None else estimate._asdict() | {"least": min(samples), "most": max(samples)}


def _sampling(wishes: Wishes) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": wishes.tokens, "ignore_eos": True}


async def _in_process(server: ServerProcess, wishes: Wishes, prompts: list[list[int]]) -> Run:
    command = {"do": "drive", "prompts": prompts, "sampling": _sampling(wishes), "clients": wishes.clients}
    done = await server.ask(command)
    return Run(done["seconds"], done["cpu_seconds"], done["ids"])


async def _over_http(server: ServerProcess, wishes: Wishes, prompts: list[list[int]]) -> Run:
    connections = [await Connection.to(server.address) for _ in range(wishes.clients)]
    waiting = iter(enumerate(prompts))
    answers: list[Answer] = [Answer() for _ in prompts]

    async def client(connection: Connection) -> None:
        for index, prompt in waiting:
            body = _sampling(wishes) | {"prompt": prompt, "stream": True, "return_token_ids": True}
            answers[index] = await connection.post("/v1/completions", body)

    began_s, cpu_s = time.perf_counter(), server.cpu_s()
    await asyncio.gather(*map(client, connections))
    seconds, spent_s = time.perf_counter() - began_s, server.cpu_s() - cpu_s
    for connection in connections:
        await connection.close()
    return Run(seconds, spent_s, [_ids(answer) for answer in answers])


def _ids(answer: Answer) -> list[int]:
    assert answer.ended, "an answer was cut off"
    return [token for each in answer.documents() for choice in each["choices"] for token in choice.get("token_ids", ())]


async def _tokens(server: ServerProcess, text: str) -> list[int]:
    connection = await Connection.to(server.address)
    answer = await connection.post("/tokenize", {"prompt": text})
    await connection.close()
    return answer.documents()[0]["tokens"]
