"""Rounds: time of every shape with and without sampling, where it goes, and how near that is to the memory's speed."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from flare.bench.gpu.staging import fill_pages, stage
from flare.bench.gpu.visit import Visit, summary
from flare.bench.stages import STAGES
from flare.build import Core, bound_program
from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph
from flare.device.rehearsal import LAW, REHEARSED_TOKENS, clear, replay_seconds
from flare.device.stopwatch import Marks, Stopwatch, median_stages
from flare.ops.sampling import DraftLaw
from flare.rounds.model import Model

WIDTHS = (1, 2, 4, 6, 8)
SPLIT = ((1, 1), (1, 6), (1, 8), (4, 1), (4, 6))
KERNELS_SHOWN = 25
GREEDY = replace(LAW, temperature=0.0, top_k=0, top_p=1.0)


def measure(visit: Visit) -> dict[str, Any]:
    """SmolLM2's rounds at the rehearsed context."""
    return rounds_of(visit, visit.core("smollm2"))


def rounds_of(visit: Visit, core: Core) -> dict[str, Any]:
    """Every shape of interest, the split of some, and the table of rows."""
    fill_pages(core)
    shapes = [
        graph
        for graph in core.manifest.graphs
        if (graph.kind == "speculative" and graph.token_capacity in WIDTHS) or graph.kind == "decode"
    ]
    timed = [timed_shape(visit, core, graph) for graph in shapes]
    plain = {entry["batch"]: entry["us"]["median"] for entry in timed if entry["kind"] == "decode"}
    for entry in timed:
        entry["over_plain"] = entry["us"]["median"] / plain[entry["batch"]] if entry["batch"] in plain else None
    split = [split_shape(visit, core, graph) for graph in shapes if _shape(graph) in SPLIT]
    by_rows = sorted(timed, key=lambda entry: entry["rows"])
    return {
        "context_tokens": min(REHEARSED_TOKENS, core.manifest.extent.context // 2),
        "shapes": timed,
        "split": split,
        "rows": [[entry["rows"], entry["kind"], entry["us"]["median"]] for entry in by_rows],
    }


def timed_shape(visit: Visit, core: Core, graph: ExecutionGraph) -> dict[str, Any]:
    """Replays under the recipe's kind of law, greedy, and with no law at all."""
    device, requests, replays = core.device, core.model.requests, visit.sizes.replays
    sampled = [1e6 * taken for taken in replay_seconds(device, requests, graph, LAW, replays)]
    greedy = [1e6 * taken for taken in replay_seconds(device, requests, graph, GREEDY, replays)]
    bare = without_sampling(visit.watch, core, graph, replays)
    moved = bytes_of(core, graph)
    return {
        "kind": graph.kind,
        "batch": graph.batch_capacity,
        "width": graph.token_capacity,
        "rows": graph.rows,
        "us": summary(sampled),
        "greedy_us": median(greedy),
        "without_sampling_us": bare,
        "sampling_us": median(sampled) - bare,
        "bytes": moved,
        "bytes_per_s": moved / median(sampled) * 1e6,
        "least_tokens_per_s": graph.batch_capacity / median(sampled) * 1e6,
    }


def without_sampling(watch: Stopwatch, core: Core, graph: ExecutionGraph, replays: int) -> float:
    """Median microseconds of the round with neither law nor chain: everything else as it is."""
    stage(core, graph)
    program = bound_program(replace(core.model, ops=unsampled(core.model)), graph)
    frame = core.device.staged()
    taken = watch.replays_us(watch.record(lambda: program(frame)), replays)
    clear(core.model.requests, core.device.arguments(0), core.manifest)
    return median(taken)


def unsampled(model: Model) -> Any:
    """The operators with a law that stays what it was and a chain that accepts nothing."""

    def target_law(logits: Tensor, *_: Any, out: Tensor) -> Tensor:  # noqa: ARG001  nothing is computed
        return out

    def chain_verify(p: Tensor, law: DraftLaw, drafts: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        return torch.ones(p.shape[:2], dtype=torch.int64, device=p.device), torch.zeros_like(drafts.sum(1))

    return replace(model.ops, target_law=target_law, chain_verify=chain_verify)


def split_shape(visit: Visit, core: Core, graph: ExecutionGraph) -> dict[str, Any]:
    """Microseconds by stage (the marks cost time themselves) and the kernels of one replay."""
    stage(core, graph)
    frame = core.device.staged()

    def work(marks: Marks) -> None:
        bound_program(marked_model(core.model, marks), graph)(frame)

    stages = median_stages(visit.watch.marked(work, visit.sizes.replays))
    program = bound_program(core.model, graph)
    kernels = visit.watch.kernels(visit.watch.record(lambda: program(frame)))
    clear(core.model.requests, core.device.arguments(0), core.manifest)
    return {
        "kind": graph.kind,
        "batch": graph.batch_capacity,
        "width": graph.token_capacity,
        "stages_us": stages,
        "launches": sum(kernel.launches for kernel in kernels),
        "kernels_us": sum(kernel.microseconds for kernel in kernels),
        "kernels": kernels[:KERNELS_SHOWN],
    }


def marked_model(model: Model, marks: Marks) -> Model:
    """The model with its parts' stages marked."""
    parts = {
        name: _Marked(getattr(model, name), stages, marks)
        for name, stages in STAGES.items()
        if getattr(model, name) is not None
    }
    return replace(model, **cast("dict[str, Any]", parts))


class _Marked:
    """A part whose named methods are marked; everything else is the part's own."""

    def __init__(self, part: object, stages: dict[str, str], marks: Marks) -> None:
        self._part, self._stages, self._marks = part, stages, marks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return self._wrapped(found, self._stages[name]) if name in self._stages else found

    def _wrapped(self, method: Callable[..., Any], stage_name: str) -> Callable[..., Any]:
        def marked(*arguments: Any, **named: Any) -> Any:
            self._marks.enter(stage_name)
            answer = method(*arguments, **named)
            self._marks.leave()
            return answer

        return marked


def bytes_of(core: Core, graph: ExecutionGraph) -> int:
    """Bytes a round cannot avoid: every matrix once, and each lane's committed pages."""
    linears = sum(packed.payload.numel() * packed.payload.element_size() for packed in core.storage.linears.values())
    context = min(REHEARSED_TOKENS, core.manifest.extent.context // 2)
    paged = sum(item.bytes_each for item in core.plan.memory.items if item.kind == "pages")
    return linears + graph.batch_capacity * paged * context // PAGE_TOKENS


def _shape(graph: ExecutionGraph) -> tuple[int, int]:
    return graph.batch_capacity, graph.token_capacity
