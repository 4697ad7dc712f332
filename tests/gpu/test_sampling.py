"""On a CUDA device: captured rounds draw from their laws, and the draws are a CPU's."""

import pytest

from flare import ops
from flare.bench.gpu.laws import captured_chi_square, compared
from flare.bench.gpu.visit import Visit

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def visit(tmp_path_factory) -> Visit:
    return Visit(tmp_path_factory.mktemp("visit"), dry=False, weights=None)


def test_captured_rounds_draw_from_their_law(visit):
    found = captured_chi_square(visit, ops.load(visit.device))
    assert found["holds"], found
    assert found["outside_the_support"] == 0
    assert found["rounds_where_lanes_0_and_3_differ"] == 0
    assert found["distinct_results_of_the_first_rounds"] > 1


def test_draws_are_those_of_a_cpu(visit):
    found = compared(visit, ops.load(visit.device))
    # A uniform within rounding of an edge of the law may fall on either side of it.
    assert found["chains_that_differ"] <= found["chains"] // 500, found
    assert found["most_law_difference"] < 1e-5
