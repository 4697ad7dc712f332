"""The full geometry is planned without a weight, and its figures follow from declarations by closed formulas."""

import pytest

from flare.build import plan_parts
from flare.config.compose import compose
from flare.layers.gated_delta_columns import GatedDeltaColumns
from flare.layers.rows import RoundShape
from flare.plan.declarations import PagedState, RoundBuffer, SlotState, array_bytes
from recipes.qwen38.parts import delta

MIB = 2**20
BIG = ["preparation.memory_bytes=400GiB"]


@pytest.fixture(scope="module")
def parts():
    return plan_parts(compose("qwen38", BIG))


def state(parts, kind, part=None):
    declared = [declared for name, declared in parts.declared if part in (None, name)]
    return [item for one in declared for item in one.state if isinstance(item, kind)]


def test_concurrency_four_and_five_drafts_select_eighteen_speculative_graphs(parts):
    graphs = parts.plan.manifest.of_kind("speculative")
    assert len(graphs) == 18
    assert {graph.draft_source for graph in graphs if graph.draft_tokens} == {"mtp+copy"}


def test_one_recurrent_matrix_per_layer_and_request_is_108_mib(parts):
    matrices = [item for item in state(parts, SlotState) if item.name.endswith(".matrix")]
    assert len(matrices) == 36
    assert sum(array_bytes(item.entry, item.dtype) for item in matrices) == 108 * MIB


def test_full_columns_for_four_requests_at_seven_extra_positions_would_take_2953_mib_and_compact_takes_none(parts):
    geometry = parts.target.geometry
    columns = GatedDeltaColumns("x", delta(geometry), "bfloat16", RoundShape(4, 7)).declare()
    matrix = next(item for item in columns.state if item.name.endswith(".matrix"))
    extra = 36 * 4 * (matrix.columns - 1) * array_bytes(matrix.shape, matrix.dtype)
    assert extra == 4 * 7 * 108 * MIB
    assert extra / 2**30 == pytest.approx(2.953, abs=5e-4)
    most = max(array_bytes(item.shape, item.dtype) for item in state(parts, RoundBuffer) if "linear_attn" in item.name)
    assert most < 4 * 3 * MIB  # no buffer holds a matrix per request and row


def test_the_draft_layer_keeps_2112_bytes_per_token(parts):
    paged = state(parts, PagedState, "drafter")
    assert sum(array_bytes(item.shape, item.dtype) for item in paged) == 2112
    assert sum(array_bytes(item.shape, item.dtype) for item in state(parts, PagedState)) == 13 * 2112


def test_feedback_tail_and_prefill_residual(parts):
    tail = next(item for item in state(parts, SlotState) if item.name == "requests.feedback")
    assert array_bytes(tail.entry, tail.dtype) == 20 * 1024
    residual = next(item for item in state(parts, RoundBuffer) if item.name == "residual")
    assert array_bytes(residual.shape, residual.dtype) == 80 * MIB


def test_figures_follow_the_geometry(parts):
    del parts
    other = plan_parts(
        compose("qwen38", [*BIG, "recipe.target.geometry.layers=8", "recipe.target.geometry.linear_value_heads=32"])
    )
    matrices = [item for item in state(other, SlotState) if item.name.endswith(".matrix")]
    assert sum(array_bytes(item.entry, item.dtype) for item in matrices) == 6 * 32 * 128 * 128 * 4


def test_modes_of_the_catalog():
    """No drafter, a drafter that only keeps its state, no ordinary decoding, ordinary decoding alone."""

    def graphs(*overrides):
        return plan_parts(compose("qwen38_small", list(overrides))).plan

    without = graphs("preparation.mtp=false", "serving.mtp_draft_tokens=0")
    assert not [graph for graph in without.prepared if graph.kind == "speculative"]
    keeping = graphs("preparation.mtp_draft_tokens=0", "serving.mtp_draft_tokens=0")
    assert {graph.token_capacity for graph in keeping.prepared if graph.kind == "speculative"} == {1}
    only = graphs("preparation.mtp_only=true")
    assert not [graph for graph in only.prepared if graph.kind == "decode"]
    ordinary = graphs("serving.mtp_draft_tokens=0")
    kinds = {"init", "prefill", "resume", "decode"}
    assert {graph.kind for graph in ordinary.manifest.graphs} == kinds | {"snapshot", "restore"}
    uncached = graphs("serving.mtp_draft_tokens=0", "serving.prefix_cache=false")
    assert {graph.kind for graph in uncached.manifest.graphs} == kinds
