"""CUDA row copies against their reference: dense and strided entries, odd sizes, lanes that copy nothing."""

from tests.ops.triton_device import DEVICE  # isort: skip  Triton decides at import where it runs

import pytest
import torch
from torch import Tensor

from flare.ops.slots import cuda, reference

SOURCE, TARGET = torch.tensor([0, 2, 1]), torch.tensor([5, 4, 3])


def tables() -> list[Tensor]:
    """Entries of dense rows, of pages by head, of whole numbers, and of one number each."""
    generator = torch.Generator().manual_seed(3)
    pages = torch.randn(2, 6, 64, 6, generator=generator).movedim(0, 2)
    return [
        torch.randn(7, 3, 5, generator=generator).bfloat16(),
        pages,
        torch.arange(6 * 3).view(6, 3),
        torch.randn(6, generator=generator),
    ]


def on_device(table: Tensor) -> Tensor:
    return torch.empty_strided(table.shape, table.stride(), dtype=table.dtype, device=DEVICE).copy_(table)


@pytest.mark.parametrize("chosen", [[True, False, True], [True, True, True], [False, False, False]])
def test_chosen_rows_are_copied_and_nothing_else(chosen):
    wanted, found = tables(), [on_device(table) for table in tables()]
    reference.copy_rows([(table, table) for table in wanted], SOURCE, TARGET, torch.tensor(chosen))
    lanes = (SOURCE.to(DEVICE), TARGET.to(DEVICE), torch.tensor(chosen, device=DEVICE))
    cuda.copy_rows([(table, table) for table in found], *lanes)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.cpu(), other)


def test_a_long_row_takes_several_programs():
    table = torch.randn(6, 5000)
    wanted, found = table.clone(), on_device(table)
    chosen = torch.tensor([True, True, False])
    reference.copy_rows([(wanted, wanted)], SOURCE, TARGET, chosen)
    cuda.copy_rows([(found, found)], SOURCE.to(DEVICE), TARGET.to(DEVICE), chosen.to(DEVICE))
    assert torch.equal(found.cpu(), wanted)


def test_rows_go_from_one_table_to_another():
    source, target = on_device(torch.randn(3, 4)), on_device(torch.zeros(6, 4))
    chosen = torch.tensor([True, False, True], device=DEVICE)
    cuda.copy_rows([(source, target)], SOURCE.to(DEVICE), TARGET.to(DEVICE), chosen)
    assert torch.equal(target[5], source[0])
    assert torch.equal(target[3], source[1])
    assert not target[[0, 1, 2, 4]].any()


def test_no_tables_are_no_work():
    cuda.copy_rows([], SOURCE, TARGET, torch.tensor([True, True, True]))
