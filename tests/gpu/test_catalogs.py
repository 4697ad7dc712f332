"""On a CUDA device: whole catalogs replay what they run eagerly, and ask for neither memory nor torch's generator."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flare.bench.gpu.catalogs import checked_graph, in_turns, memory_of
from flare.bench.gpu.staging import fill_pages, movable, put_back, saved, stage
from flare.bench.gpu.visit import Visit
from flare.build import Core
from flare.contract.frames import RECORD_FIELDS, Field
from flare.contract.manifest import ExecutionGraph
from flare.device.rehearsal import clear

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["smollm2", "qwen38_small"])
def visited(request, tmp_path_factory) -> Iterator[tuple[Visit, Core, dict[str, Any]]]:
    """A visit with one core, and what it held when nothing had run over it yet, planned and measured."""
    visit = Visit(tmp_path_factory.mktemp("visit"), dry=False, weights=None)
    core = visit.core(request.param)
    memory = memory_of(core, visit.held_bytes[request.param])
    fill_pages(core)
    yield visit, core, memory
    visit.close()


def rounds(core: Core) -> list[ExecutionGraph]:
    """The widest round of the largest batch, and an ordinary one."""
    speculative = max(core.manifest.of_kind("speculative"), key=lambda graph: (graph.batch_capacity, graph.rows))
    return [speculative, *core.manifest.of_kind("decode")[-1:]]


def replay(core: Core, graph: ExecutionGraph) -> np.ndarray:
    core.device.submit(graph.id, 0)
    records = core.device.collect(0).records.copy()
    core.device.release(0)
    return records


@pytest.fixture(autouse=True)
def nobody_is_left(visited):
    yield
    _, core, _ = visited
    core.device.staged()
    clear(core.model.requests, core.device.arguments(0), core.manifest)


def test_every_graph_replays_what_it_runs_eagerly(visited):
    _, core, _ = visited
    found = [checked_graph(core, graph) for graph in core.manifest.graphs]
    assert [entry for entry in found if entry["differs"]] == []


def test_replays_in_any_order_ask_for_no_memory(visited):
    visit, core, _ = visited
    assert in_turns(visit, core)["allocations"] == 0


def test_no_graph_holds_a_generator_node(visited):
    _, core, _ = visited
    before = torch.cuda.get_rng_state()
    for graph in core.manifest.graphs:
        stage(core, graph)
        core.device.staged()
        replay(core, graph)
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_draws_differ_from_replay_to_replay_and_agree_between_lanes(visited):
    visit, core, _ = visited
    for graph in rounds(core):
        stage(core, graph)
        arguments, last = core.device.arguments(0), graph.batch_capacity - 1
        # The last lane has the first one's pages and state: two requests with one seed and one past.
        arguments.page_tables[last] = arguments.page_tables[0]
        for tensor in movable(core).values():
            if len(tensor) > core.manifest.extent.slots:
                tensor[last] = tensor[0]
        kept = saved(core)
        core.device.staged()
        drawn = set()
        for _ in range(visit.sizes.long_replays):
            records = replay(core, graph)
            assert (records[0, RECORD_FIELDS:] == records[last, RECORD_FIELDS:]).all()
            drawn.add(int(records[0, RECORD_FIELDS]))
            if records[0, Field.CONSUMED] > core.manifest.extent.context - 2 * graph.token_capacity:
                events = core.model.requests.events.clone()
                put_back(core, kept)
                core.model.requests.events.copy_(events)
                core.device.staged()
        assert len(drawn) > 1


def test_padded_lanes_change_nothing_for_the_others(visited):
    _, core, _ = visited
    extent = core.manifest.extent
    for graph in rounds(core):
        stage(core, graph)
        kept = saved(core)
        core.device.staged()
        full = replay(core, graph)
        put_back(core, kept)
        arguments = core.device.arguments(0)
        arguments.lanes[1:], arguments.generations[1:] = extent.null_slot, -1
        arguments.page_tables[1:] = extent.null_page
        core.device.staged()
        np.testing.assert_array_equal(replay(core, graph)[0], full[0])


def test_masks_reach_the_device_where_a_lane_is_masked(visited):
    _, core, _ = visited
    token, arguments = 5, core.device.arguments(0)
    for graph in rounds(core):
        for masked in (True, False):
            stage(core, graph)
            core.device.staged()
            arguments.masked[0], arguments.masks[0] = masked, 0
            arguments.masks[0, :, token // 32] = 1 << token % 32
            first = int(replay(core, graph)[0, RECORD_FIELDS])
            assert (first == token) == masked
        arguments.masked[0] = 0


def test_a_completion_stays_until_its_frame_is_released(visited):
    _, core, _ = visited
    graph = rounds(core)[0]
    stage(core, graph)
    for name, array in vars(core.device.arguments(0)).items():
        getattr(core.device.arguments(1), name)[...] = array
    core.device.staged()
    core.device.submit(graph.id, 0)
    core.device.submit(graph.id, 1)
    first = core.device.collect(0)
    held = first.records.copy()
    second = core.device.collect(1).records
    assert (second[0, Field.ROUND] == held[0, Field.ROUND] + 1).all()
    np.testing.assert_array_equal(first.records, held)
    core.device.release(0)
    core.device.release(1)


def test_memory_is_what_was_planned_within_one_percent(visited):
    _, _, memory = visited
    assert abs(memory["difference"]) < 0.01, memory


def test_serving_compiles_nothing(visited, monkeypatch):
    _, core, _ = visited
    monkeypatch.setitem(os.environ, "FLASHINFER_DISABLE_JIT", "1")
    for graph in core.manifest.graphs:
        stage(core, graph)
        core.device.staged()
        replay(core, graph)
