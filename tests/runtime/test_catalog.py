"""Graphs by need: chunks, batches, widths, modes."""

import pytest

from flare.contract.manifest import ExecutionGraph, Manifest
from flare.errors import CapacityError
from flare.runtime.catalog import Catalog
from tests.runtime.scripted_device import scripted_manifest


def test_only_the_last_chunk_samples_and_takes_the_smallest_graph():
    catalog = Catalog(scripted_manifest(chunks=(4, 8, 16)), speculative=True)
    cut = []
    left = 41
    while left:
        graph, count = catalog.chunk(left)
        cut.append((graph.kind, graph.token_capacity, count))
        left -= count
    assert cut == [("resume", 16, 16), ("resume", 16, 16), ("prefill", 16, 9)]
    assert catalog.chunk(4)[0].token_capacity == 4 and catalog.chunk(5)[0].token_capacity == 8


def test_a_resume_chunk_leaves_a_token_to_sample_from():
    graphs = [ExecutionGraph(0, "init", 1, 0), ExecutionGraph(1, "prefill", 1, 4), ExecutionGraph(2, "resume", 1, 16)]
    graphs.append(ExecutionGraph(3, "decode", 1, 1, speculation_enabled=False))
    catalog = Catalog(Manifest(tuple(graphs), scripted_manifest().extent), speculative=False)
    assert catalog.chunk(9)[1] == 8


def test_a_cohort_takes_the_smallest_batch_that_holds_it():
    catalog = Catalog(scripted_manifest(lanes=4), speculative=True)
    assert [catalog.batch_capacity(count) for count in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert (catalog.round(4, 3).batch_capacity, catalog.round(4, 3).token_capacity) == (4, 3)


def test_modes_do_not_mix():
    manifest = scripted_manifest()
    assert Catalog(manifest, speculative=False).round(2, 1).kind == "decode"
    assert Catalog(manifest, speculative=True).round(2, 1).kind == "speculative"
    with pytest.raises(CapacityError, match="decode or speculative"):
        Catalog(
            Manifest(
                manifest.of_kind("init") + manifest.of_kind("prefill") + manifest.of_kind("resume"), manifest.extent
            ),
            speculative=True,
        )


def test_a_missing_width_one_runs_the_narrowest_graph():
    catalog = Catalog(scripted_manifest(widths=[4]), speculative=True)
    assert catalog.widths == {1: (1, 4), 2: (1, 4), 4: (1, 4)}
    assert catalog.round(2, 1).token_capacity == 4
