"""What a wide round costs: widths against width one at one context, in interleaved rounds of one request.

A request is driven launch by launch, without an engine, so that every round has the wanted width and offers as many
drafts as it holds. Rounds commit at least one token each, so the prompt is cut short by half of them: the context
grows through the length that is named.
"""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from flare.bench.arms import serving
from flare.bench.statistics import Estimate, bootstrap, quartiles
from flare.build import Core
from flare.config.config import Config
from flare.contract.device import Device
from flare.contract.frames import Source
from flare.contract.manifest import ExecutionGraph
from flare.errors import ConfigError
from flare.runtime.catalog import Catalog
from flare.runtime.copies import NOTHING, Copies, Offer
from flare.runtime.frames.writing import FrameWriter
from flare.runtime.intake import Intake
from flare.runtime.launches import Launch
from flare.runtime.policy import fixed
from flare.runtime.sampling import Sampling
from flare.runtime.scheduler import Scheduler
from flare.runtime.settling import settle

FRAME = 0
WARM_UP_ROUNDS = 2
ORDINARY = "ordinary"
SHOWN_WIDTHS = (1, 2, 4)  # beside the widest
MOST_RATIO = 1.25  # of a wide round over width one, under recipe sampling


class Law(NamedTuple):
    """A sampling law under its name in tables."""

    name: str
    sampling: Sampling


RECIPE = Law("recipe sampling", Sampling())
TOP_P_ONLY = Law("temperature 1, top-p only", Sampling(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0))


class Driver:
    """One request on a core's device, a launch at a time."""

    def __init__(self, core: Core, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        config: Config = serving(core.config, fixed_width=None, mtp_draft_tokens=max(core.config.widths()) - 1)
        self.device: Device = core.device
        extent = core.manifest.extent
        catalog = Catalog(core.manifest, speculative=True)
        self._copies = Copies(history=False, context=False)
        self._scheduler = Scheduler(catalog, extent, self._copies, fixed(catalog.widths, 1))
        self._writer = FrameWriter(extent)
        (self.request,) = Intake(config, core.vocabulary, extent, catalog).requests(prompt_ids, sampling)
        self._scheduler.add(self.request)
        while not self.request.generated_tokens:
            launch = self._scheduler.next()
            assert launch is not None
            self.run(launch)
        self._scheduler.memory.extend(self.request, self.request.reserved_tokens)

    def run(self, launch: Launch) -> float:
        """Replay one launch to its end; seconds from its submission to its collection."""
        self._writer.write(self.device.arguments(FRAME), launch)
        since = perf_counter()
        self.device.submit(launch.graph.id, FRAME)
        completion = self.device.collect(FRAME)
        spent = perf_counter() - since
        if launch.samples:
            settle(launch, completion, self.request, self._copies)
        self.device.release(FRAME)
        return spent

    def round(self, graph: ExecutionGraph, drafts: Sequence[int]) -> float:
        """One round that offers as many drafts as the graph holds; seconds."""
        depth = graph.token_capacity - 1
        if graph.kind == "decode" or depth == 0:
            offers, ceilings = (NOTHING,), (0,)
        else:
            offers, ceilings = (Offer(list(drafts[:depth]), Source.CONTEXT),), (depth,)
        speculative = graph.kind == "speculative"
        launch = Launch(graph, (self.request,), offers=offers if speculative else (), ceilings=ceilings)
        return self.run(launch)

    def close(self) -> None:
        """Free what the request holds."""
        self._scheduler.retire(self.request)


def round_costs(core: Core, text_ids: Sequence[int], contexts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Medians with quartiles per context, law and width, and the ratio to width one.

    Args:
        text_ids: text that prompts and drafts are cut from, repeated where it is too short.
        rounds: timed rounds of each width.
    """
    found = []
    for context in contexts:
        for law in (RECIPE, TOP_P_ONLY):
            growth = (WARM_UP_ROUNDS + rounds) * len(_graphs(core))
            prompt = prompt_of(text_ids, max(2, context - growth // 2))
            taken = interleaved(core, prompt, law, rounds)
            found += [_row(context, law, name, seconds, taken["1"]) for name, seconds in taken.items()]
    return found


def interleaved(core: Core, prompt_ids: Sequence[int], law: Law, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by width, in turns: every width once, then every width once more, in reversed order.

    Raises:
        ConfigError: the core's context cannot hold the prompt and all that the rounds may emit.
    """
    graphs = _graphs(core)
    budget = (WARM_UP_ROUNDS + rounds) * sum(graph.token_capacity for graph in graphs.values()) + 1
    most = core.manifest.extent.context
    if len(prompt_ids) + budget > most:
        raise ConfigError(
            f"workload.rounds={rounds} at a context of {len(prompt_ids)} may emit {budget} tokens, but "
            f"preparation.context_length is {most}: measure fewer rounds, or prepare a longer context"
        )
    driver = Driver(core, prompt_ids, replace(law.sampling, seed=11, max_tokens=budget, ignore_eos=True))
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for index in range(WARM_UP_ROUNDS + rounds):
        names = list(graphs) if index % 2 else list(reversed(graphs))
        for name in names:
            spent = driver.round(graphs[name], list(prompt_ids[1:]))
            if index >= WARM_UP_ROUNDS:
                taken[name].append(spent)
    driver.close()
    return taken


def prompt_of(text_ids: Sequence[int], context: int) -> list[int]:
    """A prompt of that many tokens."""
    repeated = list(text_ids) * (-(-context // len(text_ids)))
    return repeated[:context]


def _graphs(core: Core) -> dict[str, ExecutionGraph]:
    """One-lane rounds by name: a few speculative widths up to the widest, and ordinary decoding."""
    single = [graph for graph in core.manifest.graphs if graph.batch_capacity == 1]
    shown = {*SHOWN_WIDTHS, core.manifest.extent.width}
    speculative = [graph for graph in single if graph.kind == "speculative" and graph.token_capacity in shown]
    widths = {str(graph.token_capacity): graph for graph in speculative}
    decode = [graph for graph in single if graph.kind == "decode"]
    return widths | ({ORDINARY: decode[0]} if decode else {})


def _row(context: int, law: Law, name: str, seconds: list[float], one: list[float]) -> dict[str, Any]:
    ratio = bootstrap([own / other for own, other in zip(seconds, one, strict=True)])
    bar = MOST_RATIO if law is RECIPE and name not in ("1", ORDINARY) else None
    return {
        "context": context,
        "law": law.name,
        "width": name,
        "ms": _json(quartiles([1e3 * value for value in seconds])),
        "ratio": _json(ratio),
        "bar": bar,
        "holds": None if bar is None or ratio is None else ratio.median <= bar,
        "seconds": seconds,
    }


def _json(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()
