"""Row copies: chosen lanes get the reference's bits, everything else keeps its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.ops.slots import cpu, reference

ROWS = 7


def tables(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One table copied within itself, one into another of more rows, one with heads outermost, one of integers."""
    generator = torch.Generator().manual_seed(seed)
    within = torch.randn(ROWS, 3, generator=generator)
    source, target = torch.randn(4, 2, 5, generator=generator), torch.randn(ROWS, 2, 5, generator=generator)
    by_head = torch.randn(2, ROWS, 4, 3, generator=generator).movedim(0, 2)
    counts = torch.randint(0, 9, (ROWS,), generator=generator)
    return [(within, within), (source, target), (by_head, by_head), (counts, counts)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_chosen_lanes_copy_what_the_reference_copies_and_nothing_else_moves(data):
    lanes = data.draw(st.integers(0, 4))
    source = data.draw(st.permutations(range(4)).map(lambda rows: rows[:lanes]))
    target = data.draw(st.permutations(range(4, ROWS)).map(lambda rows: (*rows, ROWS + 50)[:lanes]))
    chosen = [data.draw(st.booleans()) and row < ROWS for row in target]
    found, wanted = tables(1), tables(1)
    rows = torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64)
    cpu.copy_rows(found, *rows, torch.tensor(chosen, dtype=torch.bool))
    reference.copy_rows(wanted, *rows, torch.tensor(chosen, dtype=torch.bool))
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
    for lane, copied in enumerate(chosen):
        if copied:
            assert all(torch.equal(rows_to[target[lane]], rows_from[source[lane]]) for rows_from, rows_to in found)


@pytest.mark.parametrize("form", [cpu, reference])
def test_a_lane_that_is_not_chosen_may_name_anything(form):
    found, before = tables(2), tables(2)
    form.copy_rows(found, torch.tensor([-1, 10**9]), torch.tensor([10**9, -1]), torch.tensor([False, False]))
    for (_, ours), (_, theirs) in zip(found, before, strict=True):
        assert torch.equal(ours, theirs)
