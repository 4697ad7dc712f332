"""CUDA n-gram embeddings and hyperconnections: golden files, the CPU beside, tensors wider than a program."""

import pytest
import torch
from torch import Tensor

from flare.ops.formats.fp8 import Fp8, quantise_fp8
from flare.ops.formats.nvfp4 import Nvfp4, quantise_nvfp4
from flare.ops.hyperconnection import cpu as hyper_cpu
from flare.ops.ngram import NgramHash, NgramTable, cpu
from flare.ops.ngram.geometry import NgramShape, ngram_geometry
from tests.goldens import golden
from tests.ops.test_ngram import LOOKUPS, hashed
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

cuda = pytest.importorskip("flare.ops.ngram.cuda")
hyper = pytest.importorskip("flare.ops.hyperconnection.cuda")

SMALL = NgramShape(vocab=96, order=3, heads_per_order=2, base=50, divisor=8, eos=95)
REAL = NgramShape(248320, order=3, heads_per_order=8, base=20_000_000, divisor=128, eos=248044)
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def hash_of(shape: NgramShape, device: str) -> NgramHash:
    geometry = ngram_geometry(shape)
    columns = (geometry.multipliers, geometry.sizes, geometry.offsets)
    return NgramHash(*(torch.tensor(column, device=device) for column in columns), eos=shape.eos)


@pytest.mark.parametrize("shape", [SMALL, REAL, NgramShape(64, 4, 3, 11, 4, eos=3)])
def test_hashed_rows_equal_the_cpu_across_cuts(shape: NgramShape) -> None:
    draws = torch.Generator().manual_seed(1)
    window = torch.randint(0, shape.vocab, (3, shape.order + 40), generator=draws)
    window[torch.rand(window.shape, generator=draws) < 0.2] = shape.eos
    expected = cpu.ngram_rows(window, hash_of(shape, "cpu"))
    assert torch.equal(cuda.ngram_rows(window.to(DEVICE), hash_of(shape, DEVICE)).cpu(), expected)


def placed(table: NgramTable, device: str) -> NgramTable:
    rows = table.rows
    if isinstance(rows, Tensor):
        return NgramTable(rows.to(device))
    return NgramTable(type(rows)(*(part.to(device) for part in vars(rows).values())))


@every_dtype
@pytest.mark.parametrize("kind", ["dense", "fp8", "nvfp4"])
def test_lookups_equal_the_cpu_bit_by_bit(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    plain = draw(50, 48, dtype=dtype).cpu()
    packed = quantise_nvfp4(plain)
    tables = {
        "dense": plain,
        "fp8": quantise_fp8(plain),
        "nvfp4": Nvfp4(packed.packed, packed.scale, packed.scale_2.view(1)),
    }
    table = NgramTable(tables[kind])
    rows = torch.randint(0, 50, (5, 4), generator=torch.Generator().manual_seed(2))
    made = cuda.ngram_lookup(placed(table, DEVICE), rows.to(DEVICE), dtype)
    assert torch.equal(made.cpu(), cpu.ngram_lookup(table, rows, dtype))


@pytest.mark.parametrize("case", LOOKUPS)
def test_golden_lookups_agree_bit_by_bit(case: str) -> None:
    tensors, params = golden(case)
    t = {name: tensor.to(DEVICE) for name, tensor in tensors.items()}
    tables = {
        "bf16": lambda: t["weight"],
        "fp8_e4m3_per_tensor": lambda: Fp8(t["weight"], t["weight_scale"]),
        "nvfp4_group16": lambda: Nvfp4(t["weight"], t["weight_scale"], t["weight_scale_2"]),
    }
    rows = hashed(cuda, t, params["eos"])
    # Triton's interpreter cuts off what it should round away, so there the last step is torch's.
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    made = cuda.ngram_lookup(NgramTable(tables[params["quant_mode"]]()), rows, dtype)
    assert torch.equal(made.bfloat16(), t["out"])


@every_dtype
def test_gate_and_convolution_equal_the_cpu(dtype: torch.dtype, tolerance: float) -> None:
    hidden, streams = 300, 4
    key, query = (draw(6, streams * hidden, dtype=dtype, seed=seed) for seed in (0, 1))
    key[0], query[1, :hidden] = 0, -key[1, :hidden]
    value = draw(6, hidden, dtype=dtype, seed=2)
    made = cuda.gate_streams(key, query, value)
    assert error(made, cpu.gate_streams(key.cpu(), query.cpu(), value.cpu())) < tolerance
    gated, weight = draw(2, 3, 1200, dtype=dtype, seed=3), draw(1200, 4, dtype=dtype, seed=4)
    window = draw(2, 12, 1200, dtype=dtype, seed=5)
    window[1] = torch.nan
    made = cuda.dilated_conv(gated, window, weight, 3)
    expected = cpu.dilated_conv(gated.cpu(), window.cpu(), weight.cpu(), 3)
    assert error(made[0], expected[0]) < tolerance
    assert made[1].isnan().all()


@every_dtype
def test_hyperconnections_equal_the_cpu_row_by_row(dtype: torch.dtype, tolerance: float) -> None:
    hidden, streams = 700, 4
    residual, gate = (draw(5, streams * hidden, dtype=dtype, seed=seed) for seed in (0, 1))
    y, injection, low = draw(5, hidden, dtype=dtype, seed=2), draw(5, streams, dtype=dtype), draw(5, 320, dtype=dtype)
    residual[3] = torch.nan
    calls = [
        ("mix_streams", (residual, gate, streams)),
        ("inject_streams", (residual, y, injection)),
        ("scaled_silu", (low, streams)),
    ]
    kept = [0, 1, 2, 4]
    for name, operands in calls:
        made = getattr(hyper, name)(*operands)
        beside = [x.cpu() if isinstance(x, Tensor) else x for x in operands]
        expected = getattr(hyper_cpu, name)(*beside)
        assert made.dtype == dtype
        assert error(made[kept], expected[kept]) < tolerance, name


@pytest.mark.gpu
def test_real_geometry_equals_float64() -> None:
    hidden, streams, rows, dtype = 2560, 4, 24, torch.bfloat16
    key, query, residual = (draw(rows, streams * hidden, dtype=dtype, seed=seed) for seed in range(3))
    y, injection = draw(rows, hidden, dtype=dtype, seed=3), draw(rows, streams, dtype=dtype, seed=4)
    pairs = [
        (cuda.gate_streams(key, query, y), cpu.gate_streams(key.cpu(), query.cpu(), y.cpu())),
        (
            hyper.mix_streams(key, query, streams),
            hyper_cpu.mix_streams(key.cpu().double(), query.cpu().double(), streams),
        ),
        (
            hyper.inject_streams(residual, y, injection),
            hyper_cpu.inject_streams(*(x.cpu().double() for x in (residual, y, injection))),
        ),
    ]
    for made, expected in pairs:
        # One rounding, at most 2^−9, and a gate that may round the other way in the first.
        assert error(made, expected) < 2**-8
