"""The baseline suite of a recipe: cold first tokens, decoding at each concurrency, long prompts, gaps, token ids."""

from statistics import median
from typing import Any

from flare.bench.arms import Arm, Bench
from flare.bench.gpu.engines import ARMS, COLD, recorded
from flare.bench.gpu.visit import Visit, replaced, summary
from flare.build import Core
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling

REPEATS = 3
LONGEST_TOKENS = (4096, 65536)


def measure(visit: Visit) -> dict[str, Any]:
    """SmolLM2's suite."""
    return suite(visit, "smollm2")


def suite(visit: Visit, recipe: str) -> dict[str, Any]:
    """All figures of one recipe's core."""
    core = visit.core(recipe)
    return {
        "recipe": recipe,
        "startup_s": visit.startup[recipe],
        "prefill_capacities": [graph.token_capacity for graph in core.manifest.of_kind("prefill")],
        "first_token": [first_token(visit, core, tokens) for tokens in visit.sizes.prompt_tokens],
        "long_prompts": [first_token(visit, core, tokens) for tokens in LONGEST_TOKENS],
        "decoding": [
            decoding(visit, core, arm, concurrency)
            for arm in (*ARMS, "adaptive, copies")
            for concurrency in (1, 2, 4)
            if concurrency <= core.config.serving.concurrency
        ],
    }


def first_token(visit: Visit, core: Core, tokens: int) -> dict[str, Any]:
    """Milliseconds from a prompt nobody saw before to its first token."""
    if tokens + 2 > core.manifest.extent.context:
        return {"prompt_tokens": tokens, "skipped": f"the context holds {core.manifest.extent.context}"}
    taken = []
    for repeat in range(REPEATS + 1):
        engine, _ = Bench(core).open(_arm(core, "plain"))
        with engine:
            done = engine.generate(visit.long_prompt(tokens), Sampling(seed=repeat, max_tokens=1, ignore_eos=True))
        assert isinstance(done, Completion)
        taken.append(1e3 * done.timing.ttft_s)
    return {"prompt_tokens": tokens, "ttft_ms": median(taken[1:]), "first_ms": taken[0], "samples_ms": taken[1:]}


def decoding(visit: Visit, core: Core, arm: str, concurrency: int) -> dict[str, Any]:
    """Tokens per second and stream, rounds, and the ids themselves."""
    prompts = visit.prompts(concurrency)
    recorder, answers = recorded(core, _arm(core, arm), prompts, visit.sizes.decode_tokens)
    recorder, answers = recorded(core, _arm(core, arm), prompts, visit.sizes.decode_tokens)
    return {
        "arm": arm,
        "concurrency": concurrency,
        "tokens_per_s": [answer.timing.tokens_per_s for answer in answers],
        "decode_s": [answer.timing.decode_s for answer in answers],
        "rounds": [len(answer.rounds) for answer in answers],
        "submission_gap_us": summary([1e6 * gap for gap in recorder.host_s]) if recorder.host_s else None,
        "token_ids": [list(answer.token_ids) for answer in answers],
    }


def _arm(core: Core, name: str) -> Arm:
    changes = ARMS.get(
        name,
        {
            **COLD,
            "mtp_draft_tokens": max(core.config.widths()) - 1,
            "fixed_width": None,
            "context_drafts": True,
            "adaptive_verification": True,
        },
    )
    return Arm(name, name, "both", replaced(core.config, changes))
