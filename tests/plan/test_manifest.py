"""The manifest's JSON reads back, and what is never a graph is refused by name."""

import json

import pytest

from flare.contract.manifest import Extent, Manifest, read_graphs
from flare.errors import PlanError
from flare.plan.catalog import CatalogRequest, catalog
from flare.plan.shapes import speculative_shapes

EXTENT = Extent(lanes=4, slots=4, pages=8, pages_per_request=2, width=6, chunk=64, context=128, vocab=100)


def graphs(**changes):
    request = {
        "concurrency": 4,
        "prefill_capacities": (16, 64),
        "shapes": speculative_shapes(4, range(1, 7), 128),
        "ordinary": True,
        "draft_source": "mtp",
        "drafter_absorbs": True,
    }
    return catalog(CatalogRequest(**request | changes))


def test_a_manifest_reads_back_from_json():
    manifest = Manifest(graphs(), EXTENT)
    assert read_graphs(json.loads(json.dumps(manifest.to_json()))) == manifest.graphs
    assert [graph.id for graph in manifest.graphs] == list(range(len(manifest.graphs)))


@pytest.mark.parametrize(("operation", "name"), [(10, "proposal"), (11, "verification"), (13, "draft commit")])
def test_operations_that_are_never_graphs_are_refused_by_name(operation, name):
    document = Manifest(graphs(), EXTENT).to_json()
    document["graphs"][0]["operation"] = operation
    with pytest.raises(PlanError, match=name):
        read_graphs(document)


def test_another_abi_is_refused():
    with pytest.raises(PlanError, match="ABI 5"):
        read_graphs({"abi": 5, "graphs": []})


def test_a_drafter_with_state_gets_prefill_graphs_of_its_own():
    modes = {graph.speculation_enabled for graph in graphs() if graph.kind == "prefill"}
    assert modes == {False, True}
    shared = {graph.speculation_enabled for graph in graphs(drafter_absorbs=False) if graph.kind == "prefill"}
    assert shared == {None}


def test_prompts_are_scored_in_the_smallest_chunk_and_in_every_mode_where_it_is_wished():
    assert [graph for graph in graphs() if graph.kind == "scored_prefill"] == []
    scored = [graph for graph in graphs(prompt_logprobs=True) if graph.kind == "scored_prefill"]
    assert [(graph.token_capacity, graph.speculation_enabled) for graph in scored] == [(16, False), (16, True)]


def test_eighteen_speculative_graphs_declare_their_depth():
    speculative = [graph for graph in graphs() if graph.kind == "speculative"]
    assert len(speculative) == 18
    assert all(graph.verify_tokens == graph.draft_tokens + 1 == graph.token_capacity for graph in speculative)
    assert {graph.draft_source for graph in speculative if graph.draft_tokens == 0} == {"none"}
