"""Projections on the CPU: against the definitions, and with the bits their parts promise."""

import pytest
import torch
from torch import Tensor

from flare import ops
from flare.ops.projection import Norm, Places, reference
from flare.ops.rotary.reference import angles

CPU = ops.load("cpu")
EPS, BASE = 1e-5, 1e4
QUERY_HEADS, KEY_HEADS, DIM, HIDDEN = 4, 2, 6, 24
# Angles are float32; a bfloat16 result is rounded at each of up to five steps, 2^−9 each.
TOLERANCES = [(torch.float64, 1e-7), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def pools(dtype: torch.dtype) -> Tensor:
    return torch.full((2, KEY_HEADS, 3, 64, DIM), torch.nan, dtype=dtype).movedim(1, 3)


@every_dtype
def test_project_heads_turns_queries_and_keys_and_places_values(dtype: torch.dtype, tolerance: float) -> None:
    x, norm = draw(5, HIDDEN, dtype=dtype), Norm(draw(HIDDEN, dtype=dtype, seed=1), EPS)
    weight = draw((QUERY_HEADS + 2 * KEY_HEADS) * DIM, HIDDEN, dtype=dtype, seed=2) / HIDDEN**0.5
    positions, index = torch.tensor([60, 61, 62, 63, 64]), torch.tensor([60, 61, 62, 63, 130])
    held, expected = pools(dtype), pools(torch.float64)
    turns = CPU.rotary_rows(CPU.rotary_table(128, DIM, BASE, dtype), positions)
    query = CPU.project_heads(x, norm, CPU.pack_linear(weight, "dense"), turns, Places(held[0], held[1], index))
    wanted = reference.project_heads(
        x.double(),
        Norm(norm.weight.double(), EPS),
        weight.double(),
        angles(positions, DIM, BASE),
        Places(expected[0], expected[1], index),
    )
    assert query.shape == (5, QUERY_HEADS, DIM)
    assert error(query, wanted) < tolerance
    assert torch.equal(held.isnan(), expected.isnan())
    assert error(held.nan_to_num(), expected.nan_to_num()) < tolerance


@every_dtype
def test_norm_gate_and_add_linear_equal_the_definition(dtype: torch.dtype, tolerance: float) -> None:
    x, norm = draw(5, HIDDEN, dtype=dtype), Norm(draw(HIDDEN, dtype=dtype, seed=1), EPS)
    weight, residual = draw(2 * 20, HIDDEN, dtype=dtype, seed=2) / HIDDEN**0.5, draw(5, 40, dtype=dtype, seed=3)
    packed, expected, before = CPU.pack_linear(weight, "dense"), residual.double(), x.clone()
    wanted = reference.norm_gate(x.double(), Norm(norm.weight.double(), EPS), weight.double())
    assert error(CPU.norm_gate(x, norm, packed), wanted) < tolerance
    CPU.add_linear(residual, x, packed)
    reference.add_linear(expected, x.double(), weight.double())
    assert error(residual, expected) < tolerance
    assert torch.equal(x, before)


def test_float32_rows_have_the_same_bits_at_any_row_count() -> None:
    x, norm = draw(16, 576, dtype=torch.float32), Norm(draw(576, dtype=torch.float32, seed=1), EPS)
    packed = CPU.pack_linear(draw(960, 576, dtype=torch.float32, seed=2) / 24, "dense")

    def added(x: Tensor) -> Tensor:
        residual = torch.ones(len(x), 960)
        CPU.add_linear(residual, x, packed)
        return residual

    for operator in (lambda x: CPU.norm_gate(x, norm, packed), added):
        together = operator(x)
        for rows in range(1, 10):
            assert torch.equal(operator(x[:rows]), together[:rows]), rows
