"""The engine's own share: its answers against a bare replay of its trace, with one and with two rounds queued."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from flare.bench.arms import Arm, ArmCore, Bench, arm_manifest
from flare.bench.gpu.visit import Visit, replaced, summary
from flare.bench.replay import RecordingDevice, Step
from flare.build import Core
from flare.contract.device import Device
from flare.contract.frames import Arguments, HostArray
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling

PAIRS = 5
MOST_RATIOS = {1: 1.15, 2: 1.05}  # engine over bare replay, by the launches the replay keeps queued
COLD: dict[str, Any] = {"prefix_cache": False, "history_drafts": False, "exploration_share": 0.0}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {**COLD, "mtp_draft_tokens": 0, "fixed_width": None, "context_drafts": False},
    "width 6, copies": {**COLD, "mtp_draft_tokens": 5, "fixed_width": 6, "context_drafts": True},
}


def measure(visit: Visit) -> dict[str, Any]:
    """Every arm at every concurrency."""
    core = visit.core("smollm2")
    most = core.config.serving.concurrency
    found = [
        overhead(visit, core, name, concurrency) for name in ARMS for concurrency in (1, 2, 4) if concurrency <= most
    ]
    return {"bars": MOST_RATIOS, "runs": found}


def overhead(visit: Visit, core: Core, name: str, concurrency: int) -> dict[str, Any]:
    """Seconds of the engine over seconds of its bare trace, in turns after one unmeasured turn."""
    bench, tokens = Bench(core), visit.sizes.decode_tokens
    arm = Arm(name, name, "both", replaced(core.config, ARMS[name]))
    prompts = visit.prompts(concurrency)
    recorder, answers = recorded(core, arm, prompts, tokens)
    changes = {queued: changed_arguments(recorder.steps, queued) for queued in MOST_RATIOS}
    engine_s: list[float] = []
    bare_s: dict[int, list[float]] = {queued: [] for queued in MOST_RATIOS}
    for _ in range(PAIRS + 1):
        engine, _ = bench.open(arm)
        with engine:
            since = perf_counter()
            engine.generate(list(prompts), _asked(tokens))
            engine_s.append(perf_counter() - since)
        for queued in MOST_RATIOS:
            bare_s[queued].append(replayed(core.device, recorder.steps, changes[queued], queued))
    rounds = sum(1 for step in recorder.steps if _kind(core, step) in ("decode", "speculative"))
    ratios = {
        queued: median(own / bare for own, bare in zip(engine_s[1:], bare[1:], strict=True))
        for queued, bare in bare_s.items()
    }
    per_round = [(own - bare) / max(rounds, 1) * 1e6 for own, bare in zip(engine_s[1:], bare_s[2][1:], strict=True)]
    return {
        "arm": name,
        "concurrency": concurrency,
        "tokens": [len(answer.token_ids) for answer in answers],
        "rounds": rounds,
        "engine_s": engine_s[1:],
        "bare_s": {queued: bare[1:] for queued, bare in bare_s.items()},
        "ratios": ratios,
        "holds": all(ratio <= MOST_RATIOS[queued] for queued, ratio in ratios.items()),
        "engine_ms_per_round": 1e3 * median(engine_s[1:]) / max(rounds, 1),
        "engine_ms_per_token_and_stream": 1e3 * median(engine_s[1:]) / max(len(answers[0].token_ids), 1),
        "host_us_per_round": median(per_round),
        "submission_gap_us": summary([1e6 * gap for gap in recorder.host_s]) if recorder.host_s else None,
    }


def recorded(
    core: Core, arm: Arm, prompts: Sequence[Sequence[int]], tokens: int
) -> tuple[RecordingDevice, list[Completion]]:
    """The device with every submission of one run of the engine, and what it answered."""
    recorder = RecordingDevice(core.device, arm_manifest(core.manifest, arm.config))
    with Engine(ArmCore(recorder, core.vocabulary, arm.config, core.measured_costs)) as engine:
        done = engine.generate([list(prompt) for prompt in prompts], _asked(tokens))
    return recorder, done if isinstance(done, list) else [done]


def changed_arguments(steps: Sequence[Step], frames: int) -> list[dict[str, HostArray]]:
    """What each step changes in a frame that holds the step so many before it."""
    changes: list[dict[str, HostArray]] = []
    held: list[Mapping[str, HostArray]] = [{} for _ in range(frames)]
    for index, step in enumerate(steps):
        arrays, before = step.arguments.items(), held[index % frames]
        changes.append({name: a for name, a in arrays if name not in before or not np.array_equal(a, before[name])})
        held[index % frames] = step.arguments
    return changes


def replayed(device: Device, steps: Sequence[Step], changes: Sequence[Mapping[str, HostArray]], queued: int) -> float:
    """Seconds of a trace with up to `queued` launches in flight: the oldest is waited for when its frame is needed."""
    frames = [_views(device.arguments(frame)) for frame in range(queued)]
    since = perf_counter()
    for index, (step, changed) in enumerate(zip(steps, changes, strict=True)):
        frame = index % queued
        if index >= queued:
            device.collect(frame)
            device.release(frame)
        for name, array in changed.items():
            frames[frame][name][...] = array
        device.submit(step.graph, frame)
    for index in range(max(len(steps) - queued, 0), len(steps)):
        device.collect(index % queued)
        device.release(index % queued)
    return perf_counter() - since


def _views(arguments: Arguments[HostArray]) -> dict[str, HostArray]:
    return {item.name: getattr(arguments, item.name) for item in fields(arguments)}


def _asked(tokens: int) -> Sampling:
    return Sampling(seed=7, max_tokens=tokens, ignore_eos=True)


def _kind(core: Core, step: Step) -> str:
    return core.manifest.graphs[step.graph].kind
