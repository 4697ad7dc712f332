"""`linear`: every format and dtype against float64, rows bit-equal at any row count, storage under its bound."""

import pytest
import torch

from flare.errors import PlanError
from flare.ops.linear import reference
from flare.ops.linear.cpu import linear, pack_linear, packed_bytes
from flare.ops.linear.int4 import quantise, restore
from flare.plan.packing import packed_linear_bytes

SHAPES = [(960, 576), (576, 1536), (3072, 576), (64, 32), (2048, 2048)]
ODD_SHAPES = [(7, 5), (100, 33), (1, 64)]
# float32 sums of K terms: relative error about sqrt(K) · 2^−24; bfloat16: one rounding of the result, 2^−9.
TOLERANCES = [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 4e-3)]


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def rows_and_weight(shape: tuple[int, int], rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    outputs, inputs = shape
    draws = torch.Generator().manual_seed(outputs * inputs)
    x = torch.randn(rows, inputs, generator=draws).to(dtype)
    return x, (torch.randn(outputs, inputs, generator=draws) * inputs**-0.5).to(dtype)


@pytest.mark.parametrize("shape", [*SHAPES[:4], *ODD_SHAPES])
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_dense_equals_the_definition(shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    for rows in (1, 3, 8):
        x, weight = rows_and_weight(shape, rows, dtype)
        y = linear(x, pack_linear(weight, "dense"))
        assert y.dtype == dtype and y.shape == (rows, shape[0])
        assert error(y, reference.linear(x.double(), weight.double())) < tolerance


# The kernel sees scale and midpoint in the activations' dtype, so bfloat16 adds their rounding to that of the result.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_int4_multiplies_by_its_grid(dtype: torch.dtype, tolerance: float) -> None:
    for shape in SHAPES[:4]:
        x, weight = rows_and_weight(shape, 3, dtype)
        y = linear(x, pack_linear(weight, "int4"))
        expected = reference.linear(x.double(), reference.stored_weight(weight, "int4").double())
        assert error(y, expected) < tolerance


def test_int4_is_half_a_step_from_the_weight_at_most() -> None:
    _, weight = rows_and_weight((64, 64), 1, torch.float64)
    grid = quantise(weight)
    steps = ((restore(grid) - weight).unflatten(1, (-1, 32)) / grid.scale.unsqueeze(-1)).abs()
    assert steps.max() <= 0.5 + 1e-9


def test_int4_finds_a_q4_1_weight_again() -> None:
    draws = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (32, 4, 32), generator=draws)
    codes[..., 0], codes[..., 1] = 0, 15  # Q4_1 spans each group from its minimum to its maximum
    scale, minimum = torch.rand(32, 4, 1, generator=draws) + 0.1, torch.randn(32, 4, 1, generator=draws)
    grid = quantise((codes * scale + minimum).flatten(1))
    assert torch.equal(grid.codes, codes.flatten(1).int())


def test_a_constant_group_stays_what_it_is() -> None:
    weight = torch.full((16, 32), 0.25)
    assert torch.equal(restore(quantise(weight)), weight)


@pytest.mark.parametrize("linear_format", ["dense", "int4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_rows_have_the_same_bits_at_any_row_count(shape: tuple[int, int], linear_format: str) -> None:
    x, weight = rows_and_weight(shape, 64, torch.float32)
    packed = pack_linear(weight, linear_format)
    together = linear(x, packed)
    for rows in (*range(1, 10), 16, 33):
        assert torch.equal(linear(x[:rows], packed), together[:rows]), rows
        assert torch.equal(linear(x[-rows:], packed), together[-rows:]), rows


@pytest.mark.parametrize("linear_format", ["dense", "int4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_packed_storage_stays_under_its_declared_bound(dtype: torch.dtype, linear_format: str) -> None:
    for shape in SHAPES if linear_format == "int4" else SHAPES + ODD_SHAPES:
        _, weight = rows_and_weight(shape, 1, dtype)
        bound = packed_linear_bytes(*shape, str(dtype).removeprefix("torch."), linear_format)
        assert packed_bytes(pack_linear(weight, linear_format)) <= bound
        if shape[0] % 64 == shape[1] % 64 == 0 and linear_format == "dense":
            assert bound == weight.nbytes


def test_out_receives_the_result() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x, weight = rows_and_weight((64, 32), 2, dtype)
        packed = pack_linear(weight, "dense")
        out = torch.full((2, 64), torch.nan, dtype=dtype)
        assert linear(x, packed, out=out) is out
        assert torch.equal(out, linear(x, packed))


def test_strided_rows_are_read_as_they_are() -> None:
    x, weight = rows_and_weight((64, 32), 8, torch.float32)
    for linear_format in ("dense", "int4"):
        packed = pack_linear(weight, linear_format)
        wide = torch.cat((x, x), 1)
        assert torch.equal(linear(wide[:, :32], packed), linear(x, packed))


def test_unknown_formats_and_impossible_shapes_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match="linear_format=int8"):
        pack_linear(torch.zeros(16, 32), "int8")
    for shape in ((8, 32), (16, 40)):
        with pytest.raises(PlanError, match=f"{shape[0]} x {shape[1]}"):
            pack_linear(torch.zeros(shape), "int4")
        with pytest.raises(PlanError, match="int4"):
            packed_linear_bytes(*shape, "bfloat16", "int4")
