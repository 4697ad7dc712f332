"""Pairs and rows: near runs are compared, loops and failures are left out of ratios and counted."""

import pytest

from flare.bench.paired import order
from flare.bench.summary import acceptance, kind_of, nearest, ratio_rows, width_costs
from tests.bench.observations import observed


def test_plain_stands_close_to_every_arm_and_the_order_turns_round():
    arms = list("abcdefg")
    forward, backward = list(order("P", arms, reverse=False)), list(order("P", arms, reverse=True))  # type: ignore[arg-type]
    assert forward == list("PabcPdefPgP")
    assert backward == list("PgfePdcbPaP")
    assert forward[0] == forward[-1] == "P"


def test_an_arm_is_paired_with_the_nearest_plain_run_of_its_own_block():
    plain = [observed("plain", 0, 0, 10), observed("plain", 0, 4, 20), observed("plain", 1, 3, 30)]
    assert nearest(observed("a", 0, 1, 1), plain) is plain[0]
    assert nearest(observed("a", 0, 3, 1), plain) is plain[1]
    assert nearest(observed("a", 0, 2, 1), plain) is plain[0]
    assert nearest(plain[0], plain) is plain[1]
    assert nearest(plain[2], plain) is plain[2]


def test_a_ratio_is_the_median_of_pairs_not_of_speeds():
    rows = ratio_rows(
        [
            *(observed("plain", block, 0, speed) for block, speed in enumerate((10, 20, 40))),
            *(observed("a", block, 1, speed) for block, speed in enumerate((20, 30, 80))),
        ]
    )
    row = next(row for row in rows if row.arm == "a")
    assert row.ratio is not None
    assert (row.ratio.median, row.ratio.samples) == (2.0, 3)
    assert (row.bar, row.holds) == (0.97, True)


def test_loops_on_either_side_and_failures_are_counted_and_make_no_ratio():
    rows = ratio_rows(
        [
            observed("plain", 0, 0, 10),
            observed("plain", 1, 0, 10, repeated=0.5),
            observed("plain", 2, 0, 10),
            observed("plain", 3, 0, 10),
            observed("a", 0, 1, 9),
            observed("a", 1, 1, 90),
            observed("a", 2, 1, 90, repeated=0.21),
            observed("a", 3, 1, 1, error="no pages left"),
        ]
    )
    row = next(row for row in rows if row.arm == "a")
    assert row.ratio == (0.9, 0.9, 0.9, 1)
    assert (row.looping, row.failed, row.holds) == (2, 1, False)


def test_an_arm_without_a_pair_is_open():
    rows = ratio_rows([observed("plain", 0, 0, 10), observed("a", 0, 1, 1, error="refused")])
    row = next(row for row in rows if row.arm == "a")
    assert (row.ratio, row.holds, row.failed) == (None, None, 1)


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"category": "code_editing", "turn": 1, "copies": "history"}, 0.97),
        ({"category": "code_editing", "turn": 2, "copies": "history"}, 1.5),
        ({"category": "code_editing", "turn": 1, "copies": "both"}, 1.5),
        ({"category": "json", "copies": "both"}, 0.97),
        ({"category": "json", "copies": "none"}, None),
        ({"category": "identical_repeat", "copies": "both"}, None),
        ({"category": "json", "copies": "both", "width": "8"}, None),
        ({"category": "json", "copies": "both", "setting": "temperature 0"}, None),
    ],
)
def test_bars_stand_where_the_issue_asks_for_them(changes, bar):
    row = next(
        row for row in ratio_rows([observed("plain", 0, 0, 1), observed("a", 0, 1, 1, **changes)]) if row.arm == "a"
    )
    assert row.bar == bar


def test_the_first_turn_of_editing_is_a_row_of_its_own():
    kinds = [kind_of(observed("a", 0, 0, 1, category="code_editing", turn=turn)) for turn in (1, 2, 3)]
    assert kinds == ["code_editing, turn 1", "code_editing, later turns", "code_editing, later turns"]


def test_acceptance_at_a_depth_is_conditional():
    rounds = ((4, 3, 3, 4, 0.02), (4, 3, 1, 2, 0.02), (4, 2, 0, 1, 0.02))
    own = observed("a", 0, 0, 1, rounds=rounds, depths=((3, 2), (3, 1), (2, 1)), sources={"history": (8, 4)})
    (row,) = acceptance([own])
    assert [depth["offered"] for depth in row["depths"]] == [3, 3, 2]
    assert [depth["reached"] for depth in row["depths"]] == [3, 2, 1]
    assert [depth["share"] for depth in row["depths"]] == [pytest.approx(2 / 3), 0.5, 1.0]
    assert row["sources"] == {"history": (8, 4)}


def test_a_width_costs_what_its_rounds_take_over_plain_rounds_of_the_block():
    rows = width_costs(
        [
            observed("plain", 0, 0, 1, rounds=((1, 0, 0, 1, 0.010), (1, 0, 0, 1, 0.012), (1, 0, 0, 1, 0.030))),
            observed("a", 0, 1, 1, rounds=((8, 7, 7, 8, 0.015), (1, 0, 0, 1, 0.012))),
        ]
    )
    assert [(row["width"], row["ratio"]["median"]) for row in rows] == [(1, 1.0), (8, pytest.approx(1.25))]
