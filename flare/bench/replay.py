"""The engine's own share: a run of the engine against a bare replay of the very graphs and arguments it submitted."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from flare.bench.arms import Arm, ArmCore, Bench, arm_manifest
from flare.bench.passing import PassingDevice
from flare.bench.statistics import bootstrap, quartiles
from flare.contract.device import FRAMES, Device
from flare.contract.frames import RECORD_FIELDS, Arguments, Completion, Field, HostArray
from flare.contract.manifest import Manifest
from flare.runtime.engine import Engine
from flare.runtime.results import Completion as Answer
from flare.runtime.sampling import Sampling

MOST_RATIO = 1.05  # of the engine over its bare replay


class Step(NamedTuple):
    """One submission: its graph, and the argument arrays as they were, by name."""

    graph: int
    arguments: dict[str, HostArray]


class RecordingDevice(PassingDevice):
    """Passes everything on and keeps what was submitted and which tokens came back.

    Attributes:
        steps: every submission in order; tokens: what each collected record of `slot` emitted.
        host_s: from each collection to the next submission, the time the device had nothing to do.
    """

    def __init__(self, device: Device, manifest: Manifest, slot: int = 0) -> None:
        super().__init__(device, manifest)
        self.steps: list[Step] = []
        self.tokens: list[int] = []
        self.host_s: list[float] = []
        self._slot = slot
        self._graphs: dict[int, int] = {}
        self._collected_s: float | None = None

    def submit(self, graph: int, frame: int) -> None:
        if self._collected_s is not None:
            self.host_s.append(perf_counter() - self._collected_s)
            self._collected_s = None
        self.steps.append(Step(graph, copied(self._device.arguments(frame))))
        self._graphs[frame] = graph
        super().submit(graph, frame)

    def collect(self, frame: int) -> Completion[HostArray]:
        completion = super().collect(frame)
        self._collected_s = perf_counter()
        self.tokens += emitted(self.manifest, self._graphs[frame], completion, self._slot)
        return completion


def copied(arguments: Arguments[HostArray]) -> dict[str, HostArray]:
    """The arrays of a frame's inputs, by name, as they are now."""
    return {item.name: np.copy(getattr(arguments, item.name)) for item in fields(arguments)}


def emitted(manifest: Manifest, graph: int, completion: Completion[HostArray], slot: int) -> list[int]:
    """Tokens of one record; none after graphs that do not sample."""
    kind = next(each.kind for each in manifest.graphs if each.id == graph)
    if kind in ("init", "resume"):
        return []
    record = completion.records[slot]
    return record[RECORD_FIELDS : RECORD_FIELDS + record[Field.EMITTED]].tolist()


def replay(device: Device, manifest: Manifest, steps: Sequence[Step], slot: int = 0) -> tuple[float, list[int]]:
    """Submit recorded steps with nothing between them but writing their arguments; seconds, and the tokens.

    Both frames are kept filled, so the device never waits for the host: this is the floor of any engine.
    """
    tokens: list[int] = []
    frames = [device.arguments(frame) for frame in range(FRAMES)]
    since = perf_counter()
    for index, step in enumerate(steps):
        frame = index % FRAMES
        if index >= FRAMES:
            _settle(device, manifest, steps[index - FRAMES].graph, frame, slot, tokens)
        for name, array in step.arguments.items():
            np.copyto(getattr(frames[frame], name), array)
        device.submit(step.graph, frame)
    for index in range(max(0, len(steps) - FRAMES), len(steps)):
        _settle(device, manifest, steps[index].graph, index % FRAMES, slot, tokens)
    return perf_counter() - since, tokens


def _settle(device: Device, manifest: Manifest, graph: int, frame: int, slot: int, tokens: list[int]) -> None:
    tokens += emitted(manifest, graph, device.collect(frame), slot)
    device.release(frame)


@dataclass(frozen=True)
class Work:
    """What is run: an arm whose rounds do not depend on timings, a prompt, the remembered responses, a budget."""

    arm: Arm
    prompt_ids: Sequence[int]
    remembered: Sequence[Sequence[int]]
    tokens: int


def overhead(bench: Bench, work: Work, pairs: int) -> dict[str, Any]:
    """Engine seconds over bare seconds for the same tokens, in ABAB pairs after one unmeasured pair.

    Raises:
        RuntimeError: the replay produced other tokens than the engine, so that the two did not do the same work.
    """
    recorder, answer = _recorded(bench, work)
    engine_s, bare_s = [], []
    for pair in range(pairs + 1):
        since = perf_counter()
        again = _answer(bench, work)
        spent = perf_counter() - since
        floor, tokens = replay(bench.core.device, recorder.manifest, recorder.steps)
        if not tokens == list(answer.token_ids) == list(again.token_ids):
            raise RuntimeError(f"The replay of '{work.arm.name}' produced other tokens than the engine.")
        if pair:
            engine_s.append(spent)
            bare_s.append(floor)
    rounds = max(1, len(answer.rounds))
    ratios = [own / bare for own, bare in zip(engine_s, bare_s, strict=True)]
    estimate = bootstrap(ratios)
    between = [(own - bare) / rounds * 1e6 for own, bare in zip(engine_s, bare_s, strict=True)]
    return {
        "arm": work.arm.name,
        "tokens": len(answer.token_ids),
        "rounds": rounds,
        "engine_s": engine_s,
        "bare_s": bare_s,
        "ratio": _as_json(estimate),
        "bar": MOST_RATIO,
        "holds": None if estimate is None else estimate.median <= MOST_RATIO,
        "host_us_per_round": _as_json(bootstrap(between)),
        "idle_device_us": _as_json(quartiles([1e6 * seconds for seconds in recorder.host_s])),
    }


def _recorded(bench: Bench, work: Work) -> tuple[RecordingDevice, Answer]:
    manifest = arm_manifest(bench.core.manifest, work.arm.config)
    recorder = RecordingDevice(bench.core.device, manifest)
    core = ArmCore(recorder, bench.core.vocabulary, work.arm.config, bench.core.measured_costs)
    engine = Engine(core)
    for tokens in work.remembered:
        engine.remember(tokens)
    with engine:
        return recorder, _generate(engine, work)


def _answer(bench: Bench, work: Work) -> Answer:
    engine, _ = bench.open(work.arm, work.remembered)
    with engine:
        return _generate(engine, work)


def _generate(engine: Engine, work: Work) -> Answer:
    done = engine.generate(list(work.prompt_ids), Sampling(seed=7, max_tokens=work.tokens, ignore_eos=True))
    assert isinstance(done, Answer)
    return done


def _as_json(estimate: tuple[Any, ...] | None) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()  # pyright: ignore[reportAttributeAccessIssue]
