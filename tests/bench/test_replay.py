"""Recorded traces: replayed bare, they give the engine's own tokens; a changed trace does not."""

from dataclasses import replace

import numpy as np

from flare.bench.replay import RecordingDevice, Step, replay
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import ScriptedCore, mixing, scripted_engine
from tests.runtime.scripted_device import ScriptedDevice, scripted_manifest


def recorded(**serving):
    """A recorder over a scripted device, after one answer; with the answer."""
    engine = scripted_engine(mixing(), **serving)
    manifest = scripted_manifest()
    recorder = RecordingDevice(ScriptedDevice(manifest, mixing()), manifest)
    core = ScriptedCore(recorder, engine.vocabulary, configuration(**serving))  # pyright: ignore[reportArgumentType]
    with Engine(core) as over:  # pyright: ignore[reportArgumentType]
        done = over.generate(list(range(40, 70)), Sampling(max_tokens=60, ignore_eos=True, temperature=0.0))
    assert isinstance(done, Completion)
    return recorder, done


def configuration(**serving):
    """The namespaces that `scripted_engine` makes, for a core of our own."""
    from types import SimpleNamespace

    from tests.runtime.scripted_core import SAMPLING

    settings = {
        "concurrency": 4, "mtp_draft_tokens": 7, "adaptive_verification": False, "fixed_width": None,
        "history_drafts": False, "prefix_cache": False, "context_drafts": True, "exploration_share": 0.0, **serving,
    }  # fmt: skip
    return SimpleNamespace(
        serving=SimpleNamespace(**settings),
        preparation=SimpleNamespace(mtp_only=False),
        sampling=SimpleNamespace(**SAMPLING),
        model_name=lambda: "scripted",
    )


def test_a_recorder_changes_nothing_and_sees_every_token():
    recorder, done = recorded()
    assert recorder.tokens == list(done.token_ids)
    assert max(row.width for row in done.rounds) > 1
    kinds = [recorder.manifest.graphs[step.graph].kind for step in recorder.steps]
    assert kinds[0] == "init"
    assert kinds.count("speculative") == len(done.rounds)
    assert len(recorder.host_s) >= len(done.rounds) - 1  # nothing is submitted after the last


def test_a_bare_replay_gives_the_same_tokens():
    for drafts in (0, 7):
        recorder, done = recorded(mtp_draft_tokens=drafts)
        seconds, tokens = replay(ScriptedDevice(recorder.manifest, mixing()), recorder.manifest, recorder.steps)
        assert tokens == list(done.token_ids)
        assert seconds > 0


def test_arguments_are_kept_as_they_were_at_submission():
    recorder, _ = recorded()
    prompts = [step.arguments["tokens"] for step in recorder.steps if step.graph == recorder.steps[0].graph]
    assert prompts[0][:30].tolist() == list(range(40, 70))
    positions = [int(step.arguments["copy_position"][0]) for step in recorder.steps if step.arguments["copy_length"][0]]
    assert len(set(positions)) > 1


def test_a_replay_of_other_arguments_gives_other_tokens():
    recorder, done = recorded()
    first = recorder.steps[0]
    changed = {name: np.copy(array) for name, array in first.arguments.items()}
    changed["tokens"][0] += 1
    steps = [Step(first.graph, changed)]
    for step in recorder.steps[1:]:
        arguments = step.arguments
        if recorder.manifest.graphs[step.graph].kind in ("prefill", "resume") and arguments["tokens"][0] == 40:
            arguments = arguments | {"tokens": changed["tokens"]}
        steps.append(step._replace(arguments=arguments | {"copy_length": np.zeros_like(arguments["copy_length"])}))
    manifest = replace(recorder.manifest)
    _, tokens = replay(ScriptedDevice(manifest, mixing()), manifest, steps)
    assert tokens != list(done.token_ids)
