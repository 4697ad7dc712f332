"""CUDA norms, gates, rotary positions and embedding: against the definitions, row by row, in any layout."""

import pytest
import torch

from flare.ops.activation import cuda as activation
from flare.ops.activation import reference as activation_reference
from flare.ops.embedding import cuda as embedding
from flare.ops.norm import cuda as norm
from flare.ops.norm import reference as norm_reference
from flare.ops.rotary import cuda as rotary
from flare.ops.rotary import reference as rotary_reference
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

EPS = 1e-5
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


@every_dtype
@pytest.mark.parametrize("width", [1, 24, 576, 2560])
def test_rms_norm_equals_the_definition(dtype: torch.dtype, tolerance: float, width: int) -> None:
    x, weight = draw(5, width, dtype=dtype), draw(width, dtype=dtype, seed=1)
    y = norm.rms_norm(x, weight, EPS)
    assert y.dtype == dtype
    assert error(y, norm_reference.rms_norm(x.double(), weight.double(), EPS)) < tolerance


@every_dtype
def test_norms_read_rows_of_a_wider_tensor(dtype: torch.dtype, tolerance: float) -> None:
    x, weight = draw(3, 100, dtype=dtype), draw(40, dtype=dtype, seed=1)
    y = norm.rms_norm(x[:, 30:70], weight, EPS)
    assert y.is_contiguous()
    assert torch.equal(y, norm.rms_norm(x[:, 30:70].contiguous(), weight, EPS))


@every_dtype
@pytest.mark.parametrize(("width", "groups"), [(40, 1), (40, 4), (10240, 4)])
def test_zero_centred_norm_treats_each_group_alone(
    dtype: torch.dtype, tolerance: float, width: int, groups: int
) -> None:
    x, weight = draw(3, width, dtype=dtype), draw(width, dtype=dtype, seed=1)
    y = norm.zero_centred_norm(x, weight, EPS, groups)
    assert error(y, norm_reference.zero_centred_norm(x.double(), weight.double(), EPS, groups)) < tolerance


@every_dtype
def test_add_rms_norm_moves_the_residual_and_norms_what_it_holds(dtype: torch.dtype, tolerance: float) -> None:
    residual, x, weight = draw(4, 72, dtype=dtype), draw(4, 72, dtype=dtype, seed=1), draw(72, dtype=dtype, seed=2)
    moved = residual.double() + x.double()
    y = norm.add_rms_norm(residual, x, weight, EPS)
    assert error(residual, moved) < tolerance
    assert error(y, norm_reference.rms_norm(residual.double(), weight.double(), EPS)) < tolerance


@every_dtype
def test_silu_mul_takes_the_gate_first(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = draw(3, 2 * 700, dtype=dtype)
    y = activation.silu_mul(gate_up)
    assert error(y, activation_reference.silu_mul(gate_up.double())) < tolerance


@every_dtype
def test_rotary_turns_pairs_by_their_angles(dtype: torch.dtype, tolerance: float) -> None:
    heads, positions = draw(6, 9, 20, dtype=dtype), torch.tensor([0, 1, 2, 63, 64, 4095])
    table = rotary.rotary_table(4096, 20, 1e4, dtype, DEVICE)
    q, k, _ = heads.split((4, 2, 3), dim=1)
    turned = rotary.apply_rotary(q, k, *rotary.rotary_rows(table, positions.to(DEVICE)))
    angle = rotary_reference.angles(positions, 20, 1e4)
    for y, x in zip(turned, (q, k), strict=True):
        assert error(y, rotary_reference.apply_rotary(x.double().cpu(), angle.double())) < tolerance


def test_embed_copies_rows() -> None:
    table, tokens = draw(50, 16), torch.tensor([3, 3, 0, 49], device=DEVICE)
    y = embedding.embed(table, tokens)
    assert torch.equal(y, table[tokens])
    y.zero_()
    assert table.any(dim=1).all()
