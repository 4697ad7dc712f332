"""What the parts of a visit share: options, sizes, cores that are built once, prompts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flare.bench.entries import read_entries
from flare.bench.gpu.weights import llama_folder
from flare.build import Core, build
from flare.config.compose import compose
from flare.config.config import Config
from flare.device.stopwatch import Stopwatch, stopwatch
from flare.plan.plan import DeviceName


@dataclass(frozen=True)
class Sizes:
    """How much is measured; a dry run measures as little as still runs every line.

    Attributes:
        replays: timed repetitions; long_replays: of the replay-after-replay test; draws: samples of a chi-square test.
        rows: target rows of operator cases; context_tokens: committed tokens in them.
        decode_tokens: of one measured answer; prompt_tokens: of the long prompts.
        small_vocab, law: words of the chi-square test; lanes, rows and words of the timed law.
    """

    replays: int = 50
    long_replays: int = 1000
    draws: int = 20_000
    rows: tuple[int, ...] = (1, 2, 8, 24)
    context_tokens: int = 512
    decode_tokens: int = 256
    prompt_tokens: tuple[int, ...] = (500, 4000)
    small_vocab: int = 64
    law: tuple[int, int, int] = (4, 6, 151_936)


DRY = Sizes(
    replays=3,
    long_replays=6,
    draws=60,
    rows=(1, 4),
    context_tokens=96,
    decode_tokens=12,
    prompt_tokens=(40, 100),
    small_vocab=16,
    law=(2, 3, 512),
)

# A Llama-type model so small that a dry run takes seconds.
DRY_GEOMETRY = {
    "hidden": 64,
    "layers": 2,
    "query_heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "ffn": 96,
    "vocab": 384,
    "context": 512,
}


@dataclass
class Visit:
    """One run of the script.

    Attributes:
        out: folder of the results; weights: a GGUF file or Hugging Face folder, None for seeded ones.
        startup: stage → seconds, by core.
        held_bytes: what building a core left on the device beside its graphs' pool, by core; 0 where nobody counts.
    """

    out: Path
    dry: bool
    weights: Path | None
    startup: dict[str, dict[str, float]] = field(default_factory=dict)
    held_bytes: dict[str, int] = field(default_factory=dict)
    _cores: dict[str, Core] = field(default_factory=dict)
    _refused: dict[str, Exception] = field(default_factory=dict)

    @property
    def device(self) -> DeviceName:
        return "cpu" if self.dry else "cuda"

    @property
    def sizes(self) -> Sizes:
        return DRY if self.dry else Sizes()

    @cached_property
    def watch(self) -> Stopwatch:
        return stopwatch(self.device)

    def config(self, recipe: str, *overrides: str) -> Config:
        """A recipe's configuration on this device."""
        common = [f"preparation.device={self.device}", "preparation.dtype=bfloat16"]
        if self.dry:
            common += ["preparation.threads=1", "preparation.memory_bytes=2GiB"]
        else:
            common += ["preparation.memory_bytes=32GiB"]
        return compose(recipe, [*common, *overrides])

    def smollm2_config(self, *overrides: str) -> Config:
        """SmolLM2, whole: four requests (two in a dry run), every width."""
        asked = [f"serving.concurrency={2 if self.dry else 4}", "checkpoint.source=path"]
        asked.append(f"checkpoint.path={self.weights or self._seeded()}")
        if self.dry:
            asked += [f"recipe.target.geometry.{name}={value}" for name, value in DRY_GEOMETRY.items()]
            asked += ["preparation.prefill_capacities=[16,64]"]
        return self.config("smollm2", *asked, *overrides)

    def core(self, name: str) -> Core:
        """A whole core by recipe, built at first use and kept for the parts after it, as is a failure to build it."""
        if name in self._refused:
            raise self._refused[name]
        if name not in self._cores:
            config = self.smollm2_config() if name == "smollm2" else self.config(name, "serving.concurrency=4")
            try:
                self._cores[name] = self._built(name, config)
            except Exception as error:
                self._refused[name] = error
                raise
        return self._cores[name]

    def _built(self, name: str, config: Config) -> Core:
        """A core with every graph; notes the seconds of each stage."""
        spent = self.startup[name] = {}
        began = last = time.perf_counter()

        def progress(stage: str, done: int, total: int) -> None:  # noqa: ARG001  only the time matters
            nonlocal last
            now = time.perf_counter()
            spent[stage] = spent.get(stage, 0.0) + now - last
            last = now

        before_bytes = self.watch.held_bytes()
        core = build(config, progress, whole_catalog=True)
        self.held_bytes[name] = self.watch.held_bytes() - before_bytes
        spent["rehearse"] = time.perf_counter() - last
        spent["all"] = time.perf_counter() - began
        return core

    def close(self) -> None:
        """Free all cores."""
        for core in self._cores.values():
            core.close()
        self._cores.clear()

    def prompts(self, count: int) -> list[list[int]]:
        """Recorded prompts of the workload, or in a dry run short ones that its vocabulary has."""
        if self.dry:
            return [[3 + lane, 5, 7, 5, 7, 9, 5, 7] * 4 for lane in range(count)]
        entries = read_entries(["code_editing", "chat", "reasoning", "json"], count)
        return [list(entry.turns[0].prompt_ids) for entry in entries[:count]]

    def long_prompt(self, tokens: int) -> list[int]:
        """A prompt of that many tokens."""
        ids = self.prompts(1)[0]
        return (ids * (-(-tokens // len(ids))))[:tokens]

    def _seeded(self) -> Path:
        settings = compose("smollm2").recipe.target.settings.geometry.model_dump()
        if self.dry:
            settings |= DRY_GEOMETRY
        return llama_folder(Path("/tmp") / f"flare-seeded-{settings['layers']}", settings, seed=1)


def replaced(config: Config, changes: dict[str, Any]) -> Config:
    """The configuration with other `serving` keys."""
    return config.model_copy(update={"serving": config.serving.model_copy(update=changes)})


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median, least and 99th percentile of samples."""
    ordered = sorted(samples)
    return {
        "median": ordered[len(ordered) // 2],
        "least": ordered[0],
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "samples": len(ordered),
    }
