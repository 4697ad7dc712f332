"""Whole catalogs: every graph replayed and run eagerly over the same state, with poisoned buffers, in any order."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flare.bench.gpu.staging import fill_pages, movable, put_back, saved, stage
from flare.bench.gpu.visit import Visit
from flare.build import Core, bound_program
from flare.contract.manifest import ExecutionGraph
from flare.device.rehearsal import clear

ROUND_BUFFER = "round."
PLANNED_WITHIN = 0.01


def smollm2(visit: Visit) -> dict[str, Any]:
    """SmolLM2's catalog; see `catalog_of`."""
    return catalog_of(visit, "smollm2")


def qwen38_small(visit: Visit) -> dict[str, Any]:
    """The small Qwen3.8's catalog; see `catalog_of`."""
    return catalog_of(visit, "qwen38_small")


def catalog_of(visit: Visit, name: str) -> dict[str, Any]:
    """Build, check every graph, replay them in turns.

    Not `ok` where an eager run differed from its replay, a poisoned buffer was read, a replay asked for memory, or what
    is held differs from the plan by more than a hundredth.
    """
    core = visit.core(name)
    memory = memory_of(core, visit.held_bytes[name])
    found = {
        "graphs": len(core.manifest.graphs),
        "build_s": visit.startup[name],
        "memory": memory,
        "costs_ms": {f"{batch}x{width}": 1e3 * cost for (batch, width), cost in core.measured_costs.items()},
    }
    fill_pages(core)
    checked = [checked_graph(core, graph) for graph in core.manifest.graphs]
    found["turns"] = in_turns(visit, core)
    broken = [entry for entry in checked if entry["differs"]]
    found["differing"] = broken
    planned = memory["difference"] is None or abs(memory["difference"]) <= PLANNED_WITHIN
    return {**found, "ok": planned and not broken and not found["turns"]["allocations"]}


def memory_of(core: Core, held_bytes: int) -> dict[str, Any]:
    """Planned bytes on the device against those held; frames are pinned twice on the host and once on the device."""
    frames = sum(item.bytes for item in core.plan.memory.items if item.kind == "frame")
    predicted = core.plan.memory.total_bytes - frames // 2
    held = held_bytes + core.device.pool_bytes
    kinds = dict.fromkeys(item.kind for item in core.plan.memory.items)
    return {
        "predicted_bytes": predicted,
        "held_bytes": held,
        "difference": held / predicted - 1 if held else None,
        "by_kind": {kind: sum(item.bytes for item in core.plan.memory.items if item.kind == kind) for kind in kinds},
    }


def checked_graph(core: Core, graph: ExecutionGraph) -> dict[str, Any]:
    """One graph: what its replay leaves against an eager run, and against a replay over poisoned buffers."""
    stage(core, graph)
    kept = saved(core)
    replayed = _replayed(core, graph)
    after = {name: tensor for name, tensor in saved(core).items() if not name.startswith(ROUND_BUFFER)}
    put_back(core, kept)
    eager = _eager(core, graph)
    differing = [name for name, tensor in after.items() if not _same(core, tensor, movable(core)[name])]
    put_back(core, kept)
    for name, tensor in movable(core).items():
        if name.startswith(ROUND_BUFFER):
            tensor.fill_(torch.nan)
    poisoned = _replayed(core, graph)
    clear(core.model.requests, core.device.arguments(0), core.manifest)
    if not np.array_equal(replayed, eager):
        differing.append("records of an eager run")
    if not np.array_equal(replayed, poisoned):
        differing.append("records over poisoned buffers")
    return {
        "graph": graph.id,
        "kind": graph.kind,
        "shape": [graph.batch_capacity, graph.token_capacity],
        "differs": differing,
    }


def in_turns(visit: Visit, core: Core) -> dict[str, Any]:
    """Graphs of all kinds and sizes in drawn order; counts what they ask of the allocator."""
    draw = random.Random(3)
    graphs = list(core.manifest.graphs)
    stage(core, max(graphs, key=lambda graph: graph.batch_capacity))
    core.device.staged()
    count = visit.watch.allocations()
    for _ in range(visit.sizes.long_replays):
        _submitted(core, draw.choice(graphs))
    allocations = visit.watch.allocations() - count
    clear(core.model.requests, core.device.arguments(0), core.manifest)
    return {"replays": visit.sizes.long_replays, "allocations": allocations}


def _replayed(core: Core, graph: ExecutionGraph) -> np.ndarray:
    core.device.staged()  # whatever prepared the state is done
    return _submitted(core, graph)


def _submitted(core: Core, graph: ExecutionGraph) -> np.ndarray:
    core.device.submit(graph.id, 0)
    records = core.device.collect(0).records[:-1].copy()
    core.device.release(0)
    return records


def _eager(core: Core, graph: ExecutionGraph) -> np.ndarray:
    frame = core.device.staged()
    with torch.inference_mode():
        bound_program(core.model, graph)(frame)
    return frame.completion.records[:-1].cpu().numpy().copy()


def _same(core: Core, one: Tensor, other: Tensor) -> bool:
    """Bit for bit, NaN included; the null slot's row is nobody's."""
    extent = core.manifest.extent
    equal = (one == other) | ((one != one) & (other != other))
    if len(one) in (extent.slots + 1, extent.slots + 1 + extent.snapshots):
        equal[extent.null_slot] = True
    return bool(equal.all())
