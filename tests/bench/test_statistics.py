"""Medians, intervals and loops: what the tables are made of."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.bench.statistics import bootstrap, looping, percentile, quartiles, repeated_share


def test_an_interval_holds_the_median_and_narrows_with_samples():
    draw = random.Random(3)
    few = bootstrap([draw.gauss(1.5, 0.2) for _ in range(8)])
    many = bootstrap([draw.gauss(1.5, 0.2) for _ in range(400)])
    assert few is not None
    assert many is not None
    assert few.low <= few.median <= few.high
    assert many.low < 1.5 < many.high
    assert many.high - many.low < (few.high - few.low) / 3


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    draw = random.Random(5)
    covered = 0
    for _ in range(100):
        estimate = bootstrap([draw.gauss(0.0, 1.0) for _ in range(25)])
        assert estimate is not None
        covered += estimate.low <= 0.0 <= estimate.high
    assert 85 <= covered <= 100


def test_the_same_samples_give_the_same_interval():
    samples = [1.0, 1.1, 1.4, 0.9, 1.05]
    assert bootstrap(samples) == bootstrap(samples)


def test_no_samples_make_no_estimate_and_one_makes_a_point():
    assert bootstrap([]) is None
    assert quartiles([]) is None
    assert bootstrap([2.0]) == (2.0, 2.0, 2.0, 1)


def test_quartiles_interpolate():
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (2.5, 1.75, 3.25, 4)
    assert percentile([0.0, 10.0], 0.99) == pytest.approx(9.9)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_repeated_share_is_a_share(tokens):
    assert 0.0 <= repeated_share(tokens) < 1.0


def test_a_text_that_runs_in_circles_is_told_from_one_that_does_not():
    assert not looping(repeated_share(list(range(100))))
    assert not looping(repeated_share([]))
    assert looping(repeated_share([1, 2, 3, 4, 5, 6, 7, 8, 9] * 6))
    once_repeated = [*range(40), *range(8)]  # one 8-gram of 41 stood before
    assert repeated_share(once_repeated) == pytest.approx(1 / 41)
    assert not looping(repeated_share(once_repeated))


def test_the_line_is_a_fifth():
    fresh = list(range(100, 187))  # 80 different 8-grams
    at_most = fresh + fresh[:27]  # 107 8-grams, 20 seen before
    assert repeated_share(at_most) < 0.2
    assert looping(repeated_share(fresh + fresh[:32]))
