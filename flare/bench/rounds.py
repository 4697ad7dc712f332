"""What a wide round costs: widths against width one at one context, in interleaved rounds of one request.

A request is driven launch by launch, without an engine, so that every round has the wanted width and offers as many
drafts as it holds. Rounds commit what they accept, so the context grows by a few tokens per round around the length
that is named.
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
            launch = self._scheduler.next(round_in_flight=False)
            assert launch is not None
            self.run(launch)

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
            taken = interleaved(core, prompt_of(text_ids, context), law, rounds)
            found += [_row(context, law, name, seconds, taken["1"]) for name, seconds in taken.items()]
    return found


def interleaved(core: Core, prompt_ids: Sequence[int], law: Law, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by width, in turns: every width once, then every width once more, in reversed order."""
    graphs = _graphs(core)
    budget = (WARM_UP_ROUNDS + rounds) * sum(graph.token_capacity for graph in graphs.values()) + 1
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
    """One-lane rounds by name: every speculative width, and ordinary decoding."""
    single = [graph for graph in core.manifest.graphs if graph.batch_capacity == 1]
    widths = {str(graph.token_capacity): graph for graph in single if graph.kind == "speculative"}
    decode = [graph for graph in single if graph.kind == "decode"]
    return widths | ({ORDINARY: decode[0]} if decode else {})


def _row(context: int, law: Law, name: str, seconds: list[float], one: list[float]) -> dict[str, Any]:
    ratio = bootstrap([own / other for own, other in zip(seconds, one, strict=True)])
    return {
        "context": context,
        "law": law.name,
        "width": name,
        "ms": _json(quartiles([1e3 * value for value in seconds])),
        "ratio": _json(ratio),
        "seconds": seconds,
    }


def _json(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()
