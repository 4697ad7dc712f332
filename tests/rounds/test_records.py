"""Completion records say what happened, a broken target included."""

import pytest

from flare.contract.frames import RECORD_FIELDS, Field, Flag
from tests.rounds.harness import bench, random_weights


@pytest.mark.parametrize("width", [1, 4])
def test_a_target_that_is_not_finite_is_flagged_in_its_own_lane_only(width):
    core = bench(random_weights())
    core.start(0, [5, 9, 2])
    core.start(1, [5, 9, 2])
    for name, tensor in core.state.items():
        if name.endswith(".values"):
            tensor[core.pages(1)[0], 1] = float("nan")  # position 1 of slot 1
    records = core.round([0, 1], width, {})
    assert records[0][Field.FLAGS] == 0
    assert records[1][Field.FLAGS] == Flag.FAULT


def test_every_metadata_field_is_written():
    core = bench(random_weights())
    core.start(2, [5, 9, 2, 4])
    record = core.round([2], 3, {2: [1, 1]})[2]
    assert record[Field.REQUEST_ID] == 102
    assert record[Field.GENERATION] == 7
    assert record[Field.CONSUMED] == 4 + record[Field.EMITTED]
    assert record[Field.GENERATED] == 1 + record[Field.EMITTED]
    assert record[Field.DRAFT_POSITION] == record[Field.CONSUMED] - 1
    assert (record[Field.WIDTH], record[Field.GRAPH], record[Field.ROUND]) == (3, 3, 2)
    assert (record[RECORD_FIELDS + record[Field.EMITTED] :] == -1).all()
