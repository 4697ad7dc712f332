"""Rehearsed rounds cost what their width makes them cost, and leave no request behind."""

import numpy as np
import pytest

from flare.device.rehearsal import rehearse
from tests.recipes.tiny_core import tiny_core


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    with tiny_core(tmp_path_factory.mktemp("tiny"), "serving.mtp_draft_tokens=3") as core:
        yield core


def test_every_round_shape_is_rehearsed(core):
    costs = rehearse(core.device, core.model.requests)
    shapes = {(g.batch_capacity, g.token_capacity) for g in core.manifest.graphs if g.kind == "speculative"}
    assert set(costs) == shapes
    assert all(seconds > 0 for seconds in costs.values())


def test_rehearsed_lanes_offer_every_draft_they_hold(core, monkeypatch):
    seen = []
    timed = core.device.timed

    def watched(graph, before, after):
        seconds = timed(graph, before, after)
        completion = core.device._frames[0].completion  # what the timed round wrote
        seen.append((graph, completion.records.copy()))
        return seconds

    monkeypatch.setattr(core.device, "timed", watched)
    rehearse(core.device, core.model.requests)
    for graph, records in seen:
        shape = core.manifest.graphs[graph]
        assert (records[: shape.batch_capacity, 6] == shape.token_capacity - 1).all()
        assert (records[: shape.batch_capacity, 5] >= 1).all()


def test_a_rehearsal_leaves_an_empty_table_and_an_unnamed_frame(core):
    rehearse(core.device, core.model.requests)
    requests, extent = core.model.requests, core.manifest.extent
    assert not requests.generation.any()
    assert not requests.consumed.any()
    arguments = core.device.arguments(0)
    assert (arguments.lanes == extent.null_slot).all()
    assert (arguments.page_tables == extent.null_page).all()
    np.testing.assert_array_equal(arguments.copy_length, 0)
