"""CUDA linears and projections: against the definitions at every row count, rows apart from each other."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from flare.errors import PlanError
from flare.ops.linear import cuda, reference
from flare.ops.linear.cuda import Seats, linear, pack_linear
from flare.ops.projection import Norm, Places
from flare.ops.projection import cuda as projection
from flare.ops.projection import reference as projection_reference
from flare.ops.rotary.cuda import rotary_rows, rotary_table
from flare.ops.rotary.reference import angles
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

EPS, BASE = 1e-5, 1e4
ROWS = (*range(1, 10), 16, 17, 32, 33)
SHAPES = [(48, 72), (7, 5), (100, 33), (1, 64), (16, 1030)]
REAL_SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576), (8192, 2560), (2048, 2560), (4, 10240)]
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def weight_of(shape: tuple[int, int], dtype: torch.dtype, seed: int = 9) -> Tensor:
    return draw(*shape, dtype=dtype, seed=seed) * shape[1] ** -0.5


@every_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_equals_the_definition(shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    weight = weight_of(shape, dtype)
    for rows in ROWS:
        x = draw(rows, shape[1], dtype=dtype)
        y = linear(x, pack_linear(weight, "dense"))
        assert y.dtype == dtype
        assert y.shape == (rows, shape[0])
        assert error(y, reference.linear(x.double(), weight.double())) < tolerance, rows


@pytest.mark.gpu
@pytest.mark.parametrize("shape", REAL_SHAPES)
@every_dtype
def test_linears_of_real_models_equal_the_definition(
    shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    weight = weight_of(shape, dtype)
    for rows in (1, 8, 24, 64):
        x = draw(rows, shape[1], dtype=dtype)
        y = linear(x, pack_linear(weight, "dense"))
        assert error(y, x.double() @ weight.double().t()) < tolerance, rows


@every_dtype
@pytest.mark.parametrize(
    "lowered",
    [
        ("_MANY_OUTPUTS",),
        ("_SHORT_INPUTS",),
        ("_SHORT_INPUTS", "_LONG_INPUTS"),
        ("_SHORT_INPUTS", "_LONG_INPUTS", "_SOME_OUTPUTS"),
    ],
    ids=" ".join,
)
def test_a_weight_of_any_size_is_cut_to_the_same_product(
    lowered: tuple[str, ...], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of((70, 72), dtype)
    small = cuda.seats(pack_linear(weight, "dense"))
    for bound in lowered:
        monkeypatch.setattr(cuda, bound, 4)
    assert cuda.seats(pack_linear(weight, "dense")) != small
    for rows in (2, 5):
        x = draw(rows, 72, dtype=dtype)
        assert error(linear(x, pack_linear(weight, "dense")), reference.linear(x.double(), weight.double())) < tolerance


CUTS = [Seats(8, 1, 18), Seats(16, 2, 1), Seats(32, 4, 2)]


def cut_by(cut: Seats, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products of few rows take this cut."""
    monkeypatch.setattr(cuda, "seats", lambda packed: cut)
    monkeypatch.setattr(projection, "_GATE_SEATS", cut)
    monkeypatch.setattr(projection, "_HEAD_SEATS", cut)


@every_dtype
@pytest.mark.parametrize("cut", CUTS)
def test_any_cut_of_seats_gives_the_same_products(
    cut: Seats, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_by(cut, monkeypatch)
    for outputs, inputs in ((38, 72), (38, 264)):
        weight, norm = weight_of((outputs, inputs), dtype), Norm(draw(inputs, dtype=dtype, seed=3), EPS)
        wide, x = Norm(norm.weight.double(), EPS), draw(5, inputs, dtype=dtype) * 3
        y = linear(x, pack_linear(weight, "dense"))
        assert error(y, reference.linear(x.double(), weight.double())) < tolerance
        gated = projection.norm_gate(x, norm, pack_linear(weight, "dense"))
        assert error(gated, projection_reference.norm_gate(x.double(), wide, weight.double())) < 2 * tolerance


def test_seats_without_a_row_are_neither_read_nor_stored() -> None:
    packed, norm = pack_linear(weight_of((20, 72), torch.float32), "dense"), Norm(draw(72, seed=3), EPS)
    held, out = draw(8, 72), torch.full((8, 20), torch.nan, device=DEVICE)
    held[3:] = torch.nan
    linear(held[:3], packed, out=out[:3])
    assert not out[:3].isnan().any()
    assert out[3:].isnan().all()
    assert not projection.norm_gate(held[:3], norm, packed).isnan().any()


@every_dtype
def test_a_row_has_the_same_bits_at_any_row_count(dtype: torch.dtype, tolerance: float) -> None:
    check_bits((*range(1, 10), 16, 17, cuda.FEW_ROWS), dtype)


def check_bits(counts: Sequence[int], dtype: torch.dtype) -> None:
    packed, norm = pack_linear(weight_of((48, 72), dtype), "dense"), Norm(draw(72, dtype=dtype, seed=3), EPS)
    x = draw(counts[-1], 72, dtype=dtype)

    def added(x: Tensor) -> Tensor:
        residual = torch.ones(len(x), 48, dtype=dtype, device=DEVICE)
        projection.add_linear(residual, x, packed)
        return residual

    def heads(x: Tensor) -> Tensor:
        index = torch.arange(len(x), device=DEVICE)
        turns = rotary_rows(rotary_table(64, 12, BASE, dtype, DEVICE), torch.zeros_like(index))
        pools = torch.zeros(2, 2, 64, 1, 12, dtype=dtype, device=DEVICE)  # after the turns: see the card
        query = projection.project_heads(x, norm, packed, turns, Places(pools[0], pools[1], index))
        return torch.cat((query, pools.view(2, -1, 1, 12)[0, : len(x)], pools.view(2, -1, 1, 12)[1, : len(x)]), 1)

    operators: list[Callable[[Tensor], Tensor]] = [
        lambda x: linear(x, packed),
        lambda x: projection.norm_gate(x, norm, packed),
        added,
        heads,
    ]
    for operator in operators:
        together = operator(x)
        for rows in counts:
            assert torch.equal(operator(x[:rows]), together[:rows]), rows
            assert torch.equal(operator(x[-rows:]), together[-rows:]), rows


def test_a_poisoned_row_stays_alone() -> None:
    packed, norm, x = pack_linear(weight_of((48, 72), torch.float32), "dense"), Norm(draw(72, seed=3), EPS), draw(4, 72)
    poisoned = x.clone()
    poisoned[2] = torch.nan
    for operator in (lambda x: linear(x, packed), lambda x: projection.norm_gate(x, norm, packed)):
        y = operator(poisoned)
        assert y[2].isnan().all()
        assert torch.equal(y[[0, 1, 3]], operator(x)[[0, 1, 3]])


def test_out_and_strided_rows() -> None:
    packed, x = pack_linear(weight_of((48, 72), torch.float32), "dense"), draw(3, 200)
    out = torch.full((3, 48), torch.nan, device=DEVICE)
    assert linear(x[:, :72], packed, out=out) is out
    assert torch.equal(out, linear(x[:, :72].contiguous(), packed))
    assert torch.equal(linear(x[:, 1::2][:, :72], packed), linear(x[:, 1::2][:, :72].contiguous(), packed))


def test_formats_of_the_cpu_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"linear_format=int4.*linear_format=dense"):
        pack_linear(torch.zeros(16, 32), "int4")
    with pytest.raises(PlanError, match="linear_format=int8"):
        pack_linear(torch.zeros(16, 32), "int8")


def heads_case(
    geometry: tuple[int, int, int], rows: int, dtype: torch.dtype
) -> tuple[Tensor, Norm, Tensor, Tensor, Tensor]:
    """Rows, norm, weight, positions and token indices; the last row goes to the null page."""
    query_heads, key_heads, dim = geometry
    hidden = 576 if dim == 64 else 24
    x, norm = draw(rows, hidden, dtype=dtype), Norm(draw(hidden, dtype=dtype, seed=4), EPS)
    weight = weight_of(((query_heads + 2 * key_heads) * dim, hidden), dtype)
    positions = torch.arange(60, 60 + rows)
    index = torch.randperm(4 * 64, generator=torch.Generator().manual_seed(1))[:rows]
    index[-1] = 4 * 64 + 5
    return x, norm, weight, positions, index


def pools_of(key_heads: int, dim: int, dtype: torch.dtype, device: str) -> Tensor:
    """Poisoned keys and values [2, 5, 64, Hk, D], heads outermost in memory, the null page last."""
    return torch.full((2, key_heads, 5, 64, dim), torch.nan, dtype=dtype, device=device).movedim(1, 3)


@every_dtype
@pytest.mark.parametrize("geometry", [(9, 3, 64), (4, 2, 6), (4, 1, 16)])
def test_project_heads_turns_queries_and_places_keys(
    geometry: tuple[int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    for rows in (*range(1, 9), 24, 40) if geometry[2] < 16 else (2,):
        x, norm, weight, positions, index = heads_case(geometry, rows, dtype)
        dim = geometry[2]
        turns = rotary_rows(rotary_table(256, dim, BASE, dtype, DEVICE), positions.to(DEVICE))
        pools = pools_of(geometry[1], dim, dtype, DEVICE)  # after the turns: see the card
        places = Places(pools[0], pools[1], index.to(DEVICE))
        query = projection.project_heads(x, norm, pack_linear(weight, "dense"), turns, places)
        expected = pools_of(geometry[1], dim, torch.float64, "cpu")
        wanted = projection_reference.project_heads(
            x.double().cpu(),
            Norm(norm.weight.double().cpu(), EPS),
            weight.double().cpu(),
            angles(positions, dim, BASE).double(),
            Places(expected[0], expected[1], index),
        )
        assert error(query, wanted) < tolerance
        assert torch.equal(pools.isnan().cpu(), expected.isnan())
        assert error(pools.nan_to_num(), expected.nan_to_num()) < tolerance


@every_dtype
def test_norm_gate_and_add_linear_equal_the_definition(dtype: torch.dtype, tolerance: float) -> None:
    norm, weight = Norm(draw(72, dtype=dtype, seed=3), EPS), weight_of((2 * 20, 72), dtype)
    wide = Norm(norm.weight.double(), EPS)
    for rows in ROWS:
        x, residual = draw(rows, 72, dtype=dtype) * 3, draw(rows, 40, dtype=dtype, seed=5)
        y = projection.norm_gate(x, norm, pack_linear(weight, "dense"))
        assert error(y, projection_reference.norm_gate(x.double(), wide, weight.double())) < 2 * tolerance
        expected = residual.double()
        projection_reference.add_linear(expected, x.double(), weight.double())
        projection.add_linear(residual, x, pack_linear(weight, "dense"))
        assert error(residual, expected) < tolerance


@pytest.mark.gpu
@every_dtype
def test_projections_at_real_sizes_equal_the_definition(dtype: torch.dtype, tolerance: float) -> None:
    norm = Norm(draw(576, dtype=dtype, seed=3), EPS)
    wide = Norm(norm.weight.double(), EPS)
    gate_up, down = weight_of((3072, 576), dtype), weight_of((576, 1536), dtype, seed=8)
    for rows in (1, 8, 24, 512):
        x, inner = draw(rows, 576, dtype=dtype), draw(rows, 1536, dtype=dtype, seed=6)
        y = projection.norm_gate(x, norm, pack_linear(gate_up, "dense"))
        gate, up = (projection_norm(x.double(), wide) @ gate_up.double().t()).chunk(2, -1)
        assert error(y, gate * gate.sigmoid() * up) < 2 * tolerance
        residual, expected = x.clone(), x.double() + inner.double() @ down.double().t()
        projection.add_linear(residual, inner, pack_linear(down, "dense"))
        assert error(residual, expected) < tolerance


def projection_norm(x: Tensor, norm: Norm) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
