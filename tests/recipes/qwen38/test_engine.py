"""qwen38_small through config, synthesis, loader, plan and engine: speculation changes no greedy token."""

from dataclasses import replace

import pytest

import flare
from flare.config.compose import compose

FP32 = ["preparation.dtype=float32", "preparation.threads=1", "preparation.memory_bytes=2GiB", "serving.concurrency=4"]
DEEP = ["serving.mtp_draft_tokens=7"]
PROMPTS = ["hello", "the the the the the the", "a", "0123456789 " * 8]
GREEDY = flare.Sampling(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The synthetic checkpoint goes where nothing of an earlier run lies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLARE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def core():
    with flare.prepare("qwen38_small", [*FP32, *DEEP]) as core:
        yield core


@pytest.fixture(scope="module")
def truth(core):
    """Ordinary decoding, which has no drafter and no draft state."""
    with flare.prepare("qwen38_small", [*FP32, "serving.mtp_draft_tokens=0"]) as plain, flare.Engine(plain) as engine:
        return [engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS]


def arm(core, *serving):
    return replace(core, config=compose("qwen38_small", [*FP32, *DEEP, *serving]))


@pytest.mark.parametrize("copies", ["false", "true"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("width", [1, 2, 4, 8, None])
def test_greedy_tokens_are_those_of_ordinary_decoding(core, truth, width, together, copies):
    policy = "serving.fixed_width=null" if width is None else f"serving.fixed_width={width}"
    chosen = arm(core, policy, f"serving.history_drafts={copies}", f"serving.context_drafts={copies}")
    with flare.Engine(chosen) as engine:
        done = engine.generate(PROMPTS, GREEDY) if together else [engine.generate(each, GREEDY) for each in PROMPTS]
    assert [completion.token_ids for completion in done] == truth
    learned = sum(
        counts.offered for one in done for name, counts in one.speculation.by_source.items() if name == "learned"
    )
    assert (learned > 0) == (width != 1)


def test_a_seed_draws_the_same_tokens_in_any_lane():
    """At a fixed width the core holds that width alone, so the sequence of widths is the request's own."""
    warm = flare.Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=3, max_tokens=24, ignore_eos=True)
    with flare.prepare("qwen38_small", [*FP32, "serving.fixed_width=4"]) as core, flare.Engine(core) as engine:
        alone = engine.generate([PROMPTS[0]], warm)[0].token_ids
        for lane in range(4):
            prompts = [PROMPTS[3]] * 4
            prompts[lane] = PROMPTS[0]
            assert engine.generate(prompts, warm)[lane].token_ids == alone


def test_everything_is_given_back(core):
    with flare.Engine(core) as engine:
        free = engine.scheduler.pages.free, engine.scheduler.slots.free
        engine.generate(PROMPTS * 3, flare.Sampling(max_tokens=12, seed=1))
        while engine.step():
            pass
        engine.check()
        assert engine.scheduler.slots.free == free[1]
        while engine.scheduler.memory.prefixes is not None and engine.scheduler.memory.prefixes.evict():
            pass
        assert engine.scheduler.pages.free == free[0]
