"""Capacities, shapes and their selection are the seed's numbers."""

import pytest

from flare.plan.shapes import Shape, batch_capacities, selected_shapes, speculative_shapes


@pytest.mark.parametrize(
    ("concurrency", "capacities"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 4)), (4, (1, 2, 4)), (5, (1, 2, 4, 8))]
)
def test_batch_capacities_are_powers_of_two_through_the_padded_limit(concurrency, capacities):
    assert batch_capacities(concurrency) == capacities


def test_five_drafts_at_concurrency_four_give_eighteen_shapes():
    assert len(speculative_shapes(4, range(1, 7), 128)) == 18


def test_wide_shapes_stop_at_the_token_capacity_but_width_one_never_does():
    shapes = speculative_shapes(8, (1, 4, 8), 16)
    assert Shape(4, 4) in shapes
    assert Shape(8, 4) not in shapes
    assert Shape(8, 1) in shapes


def test_a_fixed_width_of_four_at_concurrency_four_keeps_three_shapes():
    prepared = speculative_shapes(4, range(1, 7), 128)
    assert selected_shapes(prepared, 4, 5, 4) == (Shape(1, 4), Shape(2, 4), Shape(4, 4))


def test_a_fixed_width_is_one_where_the_token_capacity_refused_it():
    prepared = speculative_shapes(4, range(1, 7), 16)
    assert selected_shapes(prepared, 4, 5, 6) == (Shape(1, 6), Shape(2, 6), Shape(4, 1))


def test_serving_fewer_requests_and_drafts_keeps_the_smaller_shapes():
    prepared = speculative_shapes(4, range(1, 7), 128)
    assert selected_shapes(prepared, 2, 1, None) == (Shape(1, 1), Shape(1, 2), Shape(2, 1), Shape(2, 2))
