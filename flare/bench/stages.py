"""Where a round's time goes: the parts of the bound model, wrapped in clocks, in a run of their own.

The clocks cost time themselves, so this run is never one of the arms. It shares the arms' weights and state.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, cast

from flare.bench.arms import Arm, Bench
from flare.bench.statistics import quartiles
from flare.build import Core, replaying
from flare.contract.manifest import ExecutionGraph
from flare.runtime.sampling import Sampling

STAGES = {
    "drafter": {"propose": "draft", "absorb": "absorb"},
    "target": {"verify": "verify", "head": "head", "commit": "commit"},
    "ops": {"target_law": "law", "chain_verify": "accept", "report_logprobs": "logprobs"},
    "requests": {"clip": "accept", "commit": "commit"},
}
OTHER = "other"  # frames, copies, row bookkeeping, records


class Clock:
    """Seconds by stage since the last reading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def read(self) -> dict[str, float]:
        """What was spent, and zero again."""
        spent = dict(self.seconds)
        self.seconds.clear()
        return spent


class Timed:
    """A part whose named methods are timed; everything else is the part's own."""

    def __init__(self, part: object, stages: dict[str, str], clock: Clock) -> None:
        self._part, self._stages, self._clock = part, stages, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        stage = self._stages.get(name)
        if stage is None:
            return found

        def timed(*arguments: Any, **named: Any) -> Any:
            since = perf_counter()
            answer = found(*arguments, **named)
            self._clock.seconds[stage] += perf_counter() - since
            return answer

        return timed


def timed_core(core: Core, clock: Clock) -> Core:
    """The same core, replaying over timed parts; its device must be closed, the storage is the first core's."""
    model = core.model
    parts = {
        name: Timed(getattr(model, name), stages, clock)
        for name, stages in STAGES.items()
        if getattr(model, name) is not None
    }
    timed = replace(model, **cast("dict[str, Any]", parts))
    return replace(core, model=timed, device=replaying(core.plan, timed))


class _SplitDevice:
    """Reads the clock after each graph; one is in flight at a time."""

    def __init__(self, device: Any, clock: Clock) -> None:
        self.manifest = device.manifest
        self.splits: list[tuple[int, dict[str, float]]] = []
        self._device, self._clock = device, clock
        self._since: dict[int, tuple[int, float]] = {}

    def submit(self, graph: int, frame: int) -> None:
        self._since[frame] = (graph, perf_counter())
        self._device.submit(graph, frame)

    def collect(self, frame: int) -> Any:
        completion = self._device.collect(frame)
        graph, since = self._since[frame]
        spent = self._clock.read()
        spent[OTHER] = perf_counter() - since - sum(spent.values())
        self.splits.append((graph, spent))
        return completion

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def stage_split(
    bench: Bench, arm: Arm, prompt_ids: Sequence[int], remembered: Sequence[Sequence[int]], tokens: int
) -> list[dict[str, Any]]:
    """Milliseconds of each stage by width: medians with quartiles, and the share of the round."""
    clock = Clock()
    core = timed_core(bench.core, clock)
    split = _SplitDevice(core.device, clock)
    with core:
        engine, _ = Bench(replace(core, device=cast("Any", split))).open(arm, remembered)
        with engine:
            engine.generate(list(prompt_ids), Sampling(seed=3, max_tokens=tokens, ignore_eos=True))
    graphs = {graph.id: graph for graph in core.manifest.graphs}
    groups: dict[int, list[dict[str, float]]] = defaultdict(list)
    for graph, spent in split.splits:
        if _is_round(graphs[graph]):
            groups[graphs[graph].token_capacity].append(spent)
    return [_row(arm, width, spents) for width, spents in sorted(groups.items())]


def _is_round(graph: ExecutionGraph) -> bool:
    return graph.kind in ("decode", "speculative")


def _row(arm: Arm, width: int, spents: list[dict[str, float]]) -> dict[str, Any]:
    names = [*dict.fromkeys(name for stages in STAGES.values() for name in stages.values()), OTHER]
    total = sum(sum(spent.values()) for spent in spents)
    stages = {}
    for name in names:
        values = [1e3 * spent.get(name, 0.0) for spent in spents]
        estimate = quartiles(values)
        assert estimate is not None
        stages[name] = {**estimate._asdict(), "share": sum(values) / 1e3 / total}
    return {"arm": arm.name, "width": width, "rounds": len(spents), "stages": stages}
