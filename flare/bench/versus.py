"""Against other engines on the same weights, in one process and in turns: transformers' `generate`, and llama.cpp.

Both are optional; what is not installed is skipped with its reason. transformers loads the same GGUF file, dequantised
by its own reader, in the core's dtype, with its KV cache and sdpa. llama.cpp (wheel `xllamacpp`) computes on the
quantised file itself, so its numbers say where other arithmetic stands, not how good an engine is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from flare.bench.arms import Arm, Bench, plain_arm, serving
from flare.bench.entries import Entry
from flare.bench.statistics import bootstrap, quartiles
from flare.build import Core
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling

LOOKUP_TOKENS = 10  # what transformers' documentation suggests for prompt_lookup_num_tokens


class Run(NamedTuple):
    """Tokens, the seconds from the first to the last, and all seconds, prompt included."""

    tokens: int
    decode_s: float
    total_s: float

    @property
    def ms_per_token(self) -> float:
        """Of the tokens after the first; of all where one step brought them."""
        return 1e3 * (self.decode_s / (self.tokens - 1) if self.tokens > 1 else self.total_s)


@dataclass(frozen=True)
class Task:
    """One prompt with what is remembered of earlier answers, and how many tokens to generate."""

    entry: str
    turn: int
    prompt_ids: Sequence[int]
    remembered: Sequence[Sequence[int]]
    tokens: int


Side = Callable[[Task, int], Run]
"""A way to generate a task's tokens with a seed."""


class Other(NamedTuple):
    """Another engine, and the least ratio of its time per token over ours that is asked for."""

    name: str
    side: Side
    bar: float | None = None


def versus(bench: Bench, plain: Sequence[Entry], editing: Sequence[Entry], tokens: int, pairs: int) -> dict[str, Any]:
    """Every comparison that can be made here, with all samples; reasons for the others.

    Args:
        plain: conversations for plain decoding; editing: multi-turn ones for copies against prompt lookup.
        tokens: most tokens of one answer; pairs: ABAB pairs of each task.
    """
    core, config = bench.core, bench.core.config
    found: dict[str, Any] = {"skipped": {}, "comparisons": []}
    most = max(config.widths()) - 1
    copying = serving(config, mtp_draft_tokens=most, fixed_width=None, history_drafts=True, context_drafts=True)
    ours = flare_side(bench, plain_arm(config))
    copies = flare_side(bench, Arm("versus, copies", "adaptive", "both", copying))
    simple = tasks(plain, tokens)
    edits = tasks(editing, tokens)
    reason = missing("transformers", core)
    if reason is None:
        model = hugging_face(core)
        theirs, lookup = generate_side(model, core), generate_side(model, core, LOOKUP_TOKENS)
        other = Other("transformers generate", theirs, bar=1.5)
        found["comparisons"].append(compare("plain decoding", other, ours, simple, pairs))
        other = Other(f"transformers prompt_lookup_num_tokens={LOOKUP_TOKENS}", lookup, bar=1.0)
        found["comparisons"].append(compare("code editing with copies", other, copies, edits, pairs))
    else:
        found["skipped"]["transformers"] = reason
    reason = missing("xllamacpp", core)
    if reason is None:
        other = Other("llama.cpp, same GGUF", llama_cpp_side(core))
        found["comparisons"].append(compare("plain decoding", other, ours, simple, pairs))
    else:
        found["skipped"]["llama.cpp"] = reason
    return found


def tasks(entries: Sequence[Entry], tokens: int) -> list[Task]:
    """Every measured turn of the conversations."""
    return [
        Task(
            entry.id,
            index + 1,
            entry.turns[index].prompt_ids,
            entry.remembered(index),
            min(tokens, entry.turns[index].budget_tokens),
        )
        for entry in entries
        for index in entry.measured()
    ]


def missing(package: str, core: Core) -> str | None:
    """Why an engine cannot be compared with; None where it can."""
    if find_spec(package) is None:
        return f"{package} is not installed: python -m pip install {package}"
    if not core.origin.endswith(".gguf"):
        return f"the comparison reads a GGUF file, and this core was read from {core.origin}"
    return None


def compare(what: str, other: Other, ours: Side, work: Sequence[Task], pairs: int) -> dict[str, Any]:
    """Run both sides in turns, theirs first in every other pair, after one unmeasured run of each."""
    theirs = other.side
    ours(work[0], 0)
    theirs(work[0], 0)
    samples = []
    for pair in range(pairs):
        for task in work:
            sides = {"ours": ours, "theirs": theirs}
            order = list(sides) if pair % 2 else list(reversed(sides))
            runs = {side: sides[side](task, 1 + pair) for side in order}
            samples.append({"entry": task.entry, "turn": task.turn, "pair": pair, **_sample(runs)})
    ratio = bootstrap([sample["ratio"] for sample in samples])
    return {
        "what": what,
        "other": other.name,
        "ratio": _json(ratio),
        "bar": other.bar,
        "holds": None if other.bar is None or ratio is None else ratio.median >= other.bar,
        "total_ratio": _json(bootstrap([sample["total_ratio"] for sample in samples])),
        "ours_ms": _json(quartiles([sample["ours_ms"] for sample in samples])),
        "theirs_ms": _json(quartiles([sample["theirs_ms"] for sample in samples])),
        "by_turn": _by_turn(samples),
        "samples": samples,
    }


def flare_side(bench: Bench, arm: Arm) -> Side:
    """This engine, serving as the arm says."""

    def run(task: Task, seed: int) -> Run:
        engine, _ = bench.open(arm, task.remembered)
        with engine:
            since = perf_counter()
            asked = Sampling(seed=seed, max_tokens=task.tokens, ignore_eos=True)
            done = engine.generate(list(task.prompt_ids), asked)
            total = perf_counter() - since
        assert isinstance(done, Completion)
        return Run(len(done.token_ids), done.timing.decode_s, total)

    return run


def hugging_face(core: Core) -> Any:
    """The same file as transformers' own model, dequantised to the core's dtype."""
    file = Path(core.origin)
    transformers = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    options: dict[str, Any] = {"dtype": getattr(torch, core.plan.dtype), "attn_implementation": "sdpa"}
    if hasattr(transformers, "GgufConfig"):  # versions that have it would keep the weights packed, and be slow
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **options).eval()
    assert {weight.dtype for weight in model.parameters()} == {options["dtype"]}
    return model


class _Stamps:
    """A streamer that notes when each new token came, and how many with it."""

    def __init__(self) -> None:
        self.came: list[tuple[int, float]] = []

    def put(self, value: torch.Tensor) -> None:
        self.came.append((value.numel(), perf_counter()))

    def end(self) -> None:
        """Nothing is held back."""


def generate_side(model: Any, core: Core, lookup_tokens: int | None = None) -> Side:
    """transformers' `generate` with the recipe's sampling, as many threads as the core's, end tokens ignored."""
    law = core.config.sampling
    drawn: dict[str, Any] = {"do_sample": True, "temperature": law.temperature, "top_k": law.top_k, "top_p": law.top_p}
    options: dict[str, Any] = drawn if law.temperature > 0 else {"do_sample": False}
    if lookup_tokens is not None:
        options["prompt_lookup_num_tokens"] = lookup_tokens

    def run(task: Task, seed: int) -> Run:
        torch.set_num_threads(core.plan.threads or torch.get_num_threads())
        torch.manual_seed(seed)
        stamps, prompt = _Stamps(), torch.tensor([list(task.prompt_ids)])
        length = {"max_new_tokens": task.tokens, "min_new_tokens": task.tokens}
        since = perf_counter()
        with torch.inference_mode():
            answer = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), streamer=stamps, pad_token_id=0, **length, **options
            )
        total = perf_counter() - since
        first = stamps.came[1]  # the first call shows the prompt
        made = answer.shape[1] - prompt.shape[1]
        decode_s = stamps.came[-1][1] - first[1]
        # A first step of prompt lookup may bring several tokens; the time after it made the others.
        return Run(made - first[0] + 1, decode_s, total)

    return run


def llama_cpp_side(core: Core) -> Side:
    """llama.cpp's server in this process, two threads, no prompt cache; its own timings."""
    cpp = import_module("xllamacpp")
    asked = cpp.CommonParams()
    asked.model.path = core.origin
    asked.n_ctx = core.config.context_length()
    asked.n_parallel = 1
    asked.verbosity = 0
    threads = core.plan.threads or torch.get_num_threads()
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = threads
    server = cpp.Server(asked)
    law = core.config.sampling

    def run(task: Task, seed: int) -> Run:
        since = perf_counter()
        answer = server.handle_completions(
            {
                "prompt": list(task.prompt_ids),
                "n_predict": task.tokens,
                "temperature": law.temperature,
                "top_k": law.top_k,
                "top_p": law.top_p,
                "min_p": law.min_p,
                "seed": seed,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        timings = answer["timings"]
        # llama.cpp counts the first token's sampling among its eval time: tokens, not tokens - 1.
        return Run(timings["predicted_n"] + 1, timings["predicted_ms"] / 1e3, perf_counter() - since)

    return run


def versions() -> dict[str, str]:
    """Versions of the engines that are here."""
    return {name: version(name) for name in ("transformers", "xllamacpp") if find_spec(name) is not None}


def _sample(runs: dict[str, Run]) -> dict[str, float]:
    ours, theirs = runs["ours"], runs["theirs"]
    return {
        "ours_ms": ours.ms_per_token,
        "theirs_ms": theirs.ms_per_token,
        "ratio": theirs.ms_per_token / ours.ms_per_token,
        "total_ratio": theirs.total_s / ours.total_s,
        "ours_total_s": ours.total_s,
        "theirs_total_s": theirs.total_s,
    }


def _by_turn(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    turns = dict.fromkeys((sample["entry"], sample["turn"]) for sample in samples)
    return [
        {
            "entry": entry,
            "turn": turn,
            "ratio": _json(
                bootstrap([each["ratio"] for each in samples if (each["entry"], each["turn"]) == (entry, turn)])
            ),
        }
        for entry, turn in turns
    ]


def _json(estimate: Any) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()
