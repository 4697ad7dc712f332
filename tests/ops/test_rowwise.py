"""Operators that treat each row alone: norms, rotary positions, the MLP gate, embedding; and the operator set."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flare import ops
from flare.errors import PlanError
from flare.ops.activation import reference as activation
from flare.ops.embedding import reference as embedding
from flare.ops.norm import reference as norm
from flare.ops.rotary import reference as rotary

CPU = ops.load("cpu")
EPS = 1e-5
# bfloat16: one rounding of a result is 2^−9, and `silu_mul` and rotary round twice; float32: a few of 2^−24.
TOLERANCES = [(torch.float64, 1e-14), (torch.float32, 5e-7), (torch.bfloat16, 6e-3)]
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


@every_dtype
def test_rms_norm_equals_the_definition(dtype: torch.dtype, tolerance: float) -> None:
    x, weight = draw(9, 576, dtype=dtype), draw(576, dtype=dtype, seed=1)
    y = CPU.rms_norm(x, weight, EPS)
    assert y.dtype == dtype
    assert error(y, norm.rms_norm(x.double(), weight.double(), EPS)) < tolerance


def test_rms_norm_adds_eps_inside_the_root() -> None:
    x = draw(2, 64) * 1e-3
    assert error(CPU.rms_norm(x, torch.ones(64).double(), EPS), norm.rms_norm(x, torch.ones(64).double(), EPS)) < 1e-14


def test_rms_norm_is_at_least_as_exact_as_the_checkpoints_own_formula() -> None:
    x, weight = draw(64, 576, dtype=torch.bfloat16), draw(576, dtype=torch.bfloat16, seed=1)
    wide = x.float()
    llama = weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(torch.bfloat16)
    expected = norm.rms_norm(x.double(), weight.double(), EPS)
    assert error(CPU.rms_norm(x, weight, EPS), expected) <= error(llama, expected)


@every_dtype
def test_add_rms_norm_moves_the_residual(dtype: torch.dtype, tolerance: float) -> None:
    residual, x, weight = draw(4, 96, dtype=dtype), draw(4, 96, dtype=dtype, seed=1), draw(96, dtype=dtype, seed=2)
    moved = residual + x
    y = CPU.add_rms_norm(residual, x, weight, EPS)
    assert torch.equal(residual, moved)
    assert error(y, norm.rms_norm(moved.double(), weight.double(), EPS)) < tolerance


@every_dtype
def test_rotary_equals_the_definition(dtype: torch.dtype, tolerance: float) -> None:
    fused, positions = draw(6, 15, 64, dtype=dtype), torch.tensor([0, 1, 1, 5, 100, 8191])
    q, k, _ = fused.split((9, 3, 3), dim=1)
    rows = CPU.rotary_rows(CPU.rotary_table(8192, 64, 1e5, dtype), positions)
    angle = rotary.angles(positions, 64, 1e5)
    before = fused.clone()
    for turned, heads in zip(CPU.apply_rotary(q, k, *rows), (q, k), strict=True):
        assert turned.dtype == dtype and turned.shape == heads.shape
        assert error(turned, rotary.apply_rotary(heads.double(), angle)) < tolerance
    assert torch.equal(fused, before)


def test_rotary_turns_heads_from_anywhere_alike() -> None:
    fused = draw(6, 15, 64)
    q, k, v = fused.split((9, 3, 3), dim=1)
    rows = CPU.rotary_rows(CPU.rotary_table(16, 64, 1e4, torch.float64), torch.arange(6))
    together, apart = CPU.apply_rotary(q, k, *rows), CPU.apply_rotary(q.contiguous(), k.contiguous(), *rows)
    swapped = CPU.apply_rotary(k, q, *rows)
    skipped = CPU.apply_rotary(q, v, *rows)
    assert torch.equal(together[0], apart[0]) and torch.equal(together[1], apart[1])
    assert torch.equal(together[0], swapped[1]) and torch.equal(together[1], swapped[0])
    assert torch.equal(skipped[1], CPU.apply_rotary(q.contiguous(), v.contiguous(), *rows)[1])


def test_rotary_scores_depend_on_distance_alone() -> None:
    q, k = draw(1, 1, 32), draw(1, 1, 32, seed=1)
    table = CPU.rotary_table(64, 32, 1e4, torch.float64)
    scores = []
    for first, second in ((3, 7), (23, 27)):
        turned_q, _ = CPU.apply_rotary(q, k, *CPU.rotary_rows(table, torch.tensor([first])))
        _, turned_k = CPU.apply_rotary(q, k, *CPU.rotary_rows(table, torch.tensor([second])))
        scores.append((turned_q * turned_k).sum())
    assert abs(scores[0] - scores[1]) < 1e-5  # angles are float32


@every_dtype
def test_silu_mul_takes_the_gate_first(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = draw(5, 2 * 96, dtype=dtype)
    before = gate_up.clone()
    assert error(CPU.silu_mul(gate_up), activation.silu_mul(gate_up.double())) < tolerance
    assert torch.equal(gate_up, before)


@every_dtype
def test_embed_copies_rows(dtype: torch.dtype, tolerance: float) -> None:
    table, tokens = draw(50, 16, dtype=dtype), torch.tensor([3, 3, 0, 49])
    y = CPU.embed(table, tokens)
    assert torch.equal(y, embedding.embed(table, tokens))
    y.zero_()
    assert table.any(dim=1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_have_the_same_bits_at_any_row_count(dtype: torch.dtype) -> None:
    weight, table = draw(576, dtype=dtype), CPU.rotary_table(64, 64, 1e4, dtype)

    def turned(x: Tensor) -> Tensor:
        heads = x.view(-1, 9, 64)
        return CPU.apply_rotary(heads, heads, *CPU.rotary_rows(table, torch.full((len(x),), 7)))[0]

    operators: list[Callable[[Tensor], Tensor]] = [
        lambda x: CPU.rms_norm(x, weight, EPS),
        lambda x: CPU.add_rms_norm(x.clone(), x, weight, EPS),
        CPU.silu_mul,
        turned,
    ]
    x = draw(64, 576, dtype=dtype, seed=2)
    for operator in operators:
        together = operator(x)
        for rows in (*range(1, 10), 16, 64):
            assert torch.equal(operator(x[:rows]), together[:rows]), (operator, rows)


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="tpu"):
        ops.load("tpu")
