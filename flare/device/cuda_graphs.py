"""Warm-up and capture: every program once eagerly, then into graphs that share one memory pool.

An eager pass compiles, tunes and loads whatever a program uses and leaves its workspaces behind; a capture may do none
of that. Graphs are captured from the largest to the smallest, so that each finds its temporaries in what larger ones
left in the pool: rounds run one after another, so their temporaries may overlap.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import torch

from flare.contract.manifest import ExecutionGraph, Manifest
from flare.device.replay import Program, Progress
from flare.rounds.model import Frame


class GraphMemory(NamedTuple):
    """Bytes beside weights, state and frames: what libraries keep after a warm-up, and the graphs' shared pool."""

    workspace_bytes: int
    pool_bytes: int


class CapturedGraphs(NamedTuple):
    """Graphs by id, and what they took."""

    by_id: dict[int, Any]  # torch.cuda.CUDAGraph, which torch does not type
    memory: GraphMemory


def capture_order(manifest: Manifest) -> list[ExecutionGraph]:
    """The graphs with the most rows first."""
    return sorted(manifest.graphs, key=lambda graph: (-graph.rows, graph.id))


def largest_of_each(manifest: Manifest) -> list[ExecutionGraph]:
    """One graph of each kind and serving mode, that with the most rows: together they size the pool."""
    found: dict[tuple[str, bool | None], ExecutionGraph] = {}
    for graph in capture_order(manifest):
        found.setdefault((graph.kind, graph.speculation_enabled), graph)
    return list(found.values())


def capture_programs(
    order: Sequence[ExecutionGraph],
    programs: Sequence[Program],
    frame: Frame,
    stream: Any,
    progress: Progress | None = None,
) -> CapturedGraphs:
    """Warm up, then capture programs in this order.

    Args:
        programs: by graph id; frame: the arrays they all work on, naming no live lane.
        stream: the one that will replay; libraries keep workspaces per stream.
    """
    settle_memory()
    before = held_bytes()
    for done, graph in enumerate(order, 1):
        run_on(stream, lambda graph=graph: programs[graph.id](frame))
        if progress is not None:
            progress("warm up", done, len(order))
    settle_memory()
    workspace_bytes = held_bytes() - before
    reserved = torch.cuda.memory_reserved()
    pool = torch.cuda.graph_pool_handle()
    captured: dict[int, Any] = {}
    with undisturbed():
        for done, graph in enumerate(order, 1):
            captured[graph.id] = capture(lambda graph=graph: programs[graph.id](frame), stream, pool)
            if progress is not None:
                progress("capture", done, len(order))
    torch.cuda.synchronize()
    memory = GraphMemory(workspace_bytes, torch.cuda.memory_reserved() - reserved)
    return CapturedGraphs(captured, memory)


@cache
def replay_stream() -> Any:
    """The stream of all captures and replays of this process.

    Libraries keep a workspace per stream, which graphs hold the address of: on one stream there is one, however many
    cores come and go.
    """
    return torch.cuda.Stream()


def run_on(stream: Any, work: Callable[[], object]) -> None:
    """Do the work eagerly on a stream and wait for it."""
    with torch.inference_mode(), torch.cuda.stream(stream):
        work()
    stream.synchronize()


def capture(work: Callable[[], object], stream: Any, pool: Any = None) -> Any:
    """A graph of the work, which ran before on the same stream. Raises whatever the work raises."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(stream):
        graph.capture_begin(*(() if pool is None else (pool,)), capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # the capture is broken already; why is what the first error says
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside: a finaliser that frees device memory would break a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def settle_memory() -> None:
    """Collect garbage and give cached memory back, so that what is held is what is used."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def held_bytes() -> int:
    """Bytes of all tensors alive on the device, as asked for: not rounded up to the allocator's blocks."""
    return int(torch.cuda.memory_stats().get("requested_bytes.all.current", 0))
