"""Hashed n-gram embeddings: geometry, hash, lookup in every format, gate and convolution."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flare import ops
from flare.errors import CheckpointError
from flare.ops.formats.fp8 import Fp8
from flare.ops.formats.nvfp4 import Nvfp4
from flare.ops.ngram import NgramHash, NgramTable, reference
from flare.ops.ngram.geometry import NgramShape, check_geometry, ngram_geometry
from flare.ops.operators import Operators
from tests.goldens import golden

CPU = ops.load("cpu")
SMALL = NgramShape(vocab=96, order=3, heads_per_order=2, base=50, divisor=8, eos=95)
EPS = 1e-6
HASHES = [f"qwen38/ple_hash_{index}" for index in range(3)]
LOOKUPS = [f"qwen38/ple_embedding_{kind}" for kind in ("bf16", "fp8_e4m3_per_tensor", "nvfp4_group16")]
CONVS = [f"qwen38/ple_conv_{index}" for index in range(3)]


def requests(t: dict[str, Tensor]) -> list[slice]:
    bounds = t["query_start_loc"].tolist()
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def hashed(operators: Operators, t: dict[str, Tensor], eos: int) -> Tensor:
    hashing = NgramHash(t["multipliers"], t["prime_sizes"], t["table_offsets"], eos)
    windows = [
        torch.cat((history, t["token_ids"][rows]))[None]
        for history, rows in zip(t["committed_history"], requests(t), strict=True)
    ]
    return torch.cat([operators.ngram_rows(window, hashing) for window in windows])


@pytest.mark.parametrize("case", HASHES)
def test_golden_geometry_is_derived(case):
    t, params = golden(case)
    names = ("vocab_size", "max_order", "heads_per_order", "base")
    shape = NgramShape(*(params[name] for name in names), 128, params["eos"], params["seed"], params["ordinal"])
    derived = ngram_geometry(shape)
    assert list(derived.multipliers) == t["multipliers"].tolist()
    assert list(derived.sizes) == t["prime_sizes"].tolist()
    assert list(derived.offsets) == t["table_offsets"].tolist()
    assert derived.rows == params["padded_rows_128"]
    assert sum(derived.sizes) == params["total_rows"]


def test_the_small_geometry_has_240_rows():
    assert ngram_geometry(SMALL).sizes == (53, 59, 61, 67)
    assert ngram_geometry(SMALL).rows == 240


def test_a_stored_hash_that_differs_is_refused_by_name():
    derived = ngram_geometry(SMALL)
    check_geometry(derived, {"ple.ngram_heads_vocab_sizes": [53, 59, 61, 67]})
    with pytest.raises(CheckpointError, match=r"ple\.ngram_heads_vocab_sizes holds \[53, 59, 61, 71\]"):
        check_geometry(derived, {"ple.ngram_heads_vocab_sizes": [53, 59, 61, 71]})


@pytest.mark.parametrize("case", HASHES)
def test_golden_hashes_agree(case):
    t, params = golden(case)
    assert torch.equal(hashed(CPU, t, params["eos"]), t["ids"])


@pytest.mark.parametrize("case", HASHES)
def test_golden_hashes_refuse_a_hash_that_no_eos_cuts(case):
    t, _ = golden(case)
    assert not torch.equal(hashed(CPU, t, -1), t["ids"])


@pytest.mark.parametrize("order", [2, 3, 4])
def test_hashes_equal_the_definition(order):
    derived = ngram_geometry(replace(SMALL, order=order, eos=3))
    hashing = NgramHash(
        *(torch.tensor(numbers) for numbers in (derived.multipliers, derived.sizes, derived.offsets)), 3
    )
    window = torch.randint(0, 6, (5, 12), generator=torch.Generator().manual_seed(order))
    assert torch.equal(CPU.ngram_rows(window, hashing), reference.ngram_rows(window, hashing))


def check_lookup(operators: Operators, case: str) -> None:
    """b12x multiplies in float32 and rounds to bfloat16, as we do: every bit agrees."""
    t, params = golden(case)
    weight = t["weight"]
    match params["quant_mode"]:
        case "bf16":
            table = NgramTable(weight)
        case "fp8_e4m3_per_tensor":
            table = NgramTable(Fp8(weight, t["weight_scale"]))
        case _:
            table = NgramTable(Nvfp4(weight, t["weight_scale"], t["weight_scale_2"]))
    rows = hashed(operators, t, params["eos"])
    assert torch.equal(operators.ngram_lookup(table, rows, torch.bfloat16), t["out"])


@pytest.mark.parametrize("case", LOOKUPS)
def test_golden_lookups_agree(case):
    check_lookup(CPU, case)


@pytest.mark.parametrize("case", LOOKUPS)
def test_golden_lookups_refuse_a_hash_without_the_row_before(case):
    def alone(window: Tensor, hashing: NgramHash) -> Tensor:
        lags = hashing.multipliers.shape[0] - 1
        rows = [
            CPU.ngram_rows(torch.cat((window[:, :lags], window[:, place, None]), 1), hashing)
            for place in range(lags, window.shape[1])
        ]
        return torch.stack(rows, 1).flatten(0, 1)

    with pytest.raises(AssertionError):
        check_lookup(replace(CPU, ngram_rows=alone), case)


def check_gate(operators: Operators, case: str) -> None:
    """b12x keeps the similarity in float32 and rounds the gate, as we do: every bit agrees."""
    t, params = golden(case)
    streams, eps = params["streams"], params["eps"]
    key = operators.zero_centred_norm(t["key"].flatten(1), t["norm_key"], eps, streams)
    query = operators.zero_centred_norm(t["residual"].flatten(1), t["norm_query"], eps, streams)
    gated = operators.gate_streams(key, query, t["value"])
    assert torch.equal(gated, t["gated_value"].flatten(1))
    assert torch.equal(operators.zero_centred_norm(gated, t["norm_conv"], eps, streams), t["conv_input"])


def check_conv(operators: Operators, case: str) -> None:
    """b12x rounds z, silu(z) (2^-8 of themselves each) and the sum to bfloat16; we round the sum alone."""
    t, params = golden(case)
    for prior, newest, rows in zip(t["prior_states"], t["newest_states"], requests(t), strict=True):
        gated = t["gated_value"][rows].flatten(1)
        window = torch.cat((prior.mT, t["conv_input"][rows]))[None]
        y = operators.dilated_conv(gated[None], window, t["conv_weight"], params["dilation"])[0].double()
        wanted = t["out"][rows].flatten(1).double()
        taps, inputs = t["conv_weight"].double()[:, None], window.double().mT
        z = functional.conv1d(inputs, taps, dilation=params["dilation"], groups=len(taps))[0].mT
        bound = 2**-8 * (1.1 * z.abs() + functional.silu(z).abs()) + 2**-7 * wanted.abs()  # silu is at most 1.1 steep
        assert ((y - wanted).abs() <= bound).all()
        assert torch.equal(window[0, -newest.shape[1] :].mT, newest)


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("check", [check_gate, check_conv])
def test_golden_gates_and_convolutions_agree(check, case):
    check(CPU, case)


def one_mean(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight, eps)


def dense_taps(gated: Tensor, window: Tensor, weight: Tensor, dilation: int) -> Tensor:
    return CPU.dilated_conv(gated, window[:, weight.shape[1] * (dilation - 1) - dilation + 1 :], weight, 1)


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (check_gate, replace(CPU, zero_centred_norm=one_mean)),
        (check_gate, replace(CPU, gate_streams=lambda key, query, value: CPU.gate_streams(key, query / 2, value))),
        (check_conv, replace(CPU, dilated_conv=dense_taps)),
        (check_conv, replace(CPU, dilated_conv=lambda u, w, k, d: CPU.dilated_conv(u, w, k.flip(1), d))),
    ],
    ids=["one mean", "similarity halved", "dilation 1", "taps reversed"],
)
@pytest.mark.parametrize("case", CONVS)
def test_golden_gates_and_convolutions_refuse_mutants(check, mutant, case):
    with pytest.raises(AssertionError):
        check(mutant, case)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_gate_and_convolution_equal_their_definitions(dtype, tolerance):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    key, query, value = draw(7, 32), draw(7, 32), draw(7, 8)
    key[3, 8:16] = 0  # no similarity at all: the gate is a half
    wanted = reference.gate_streams(key.double(), query.double(), value.double())
    ours = CPU.gate_streams(key, query, value)
    assert float((ours - wanted).norm() / wanted.norm()) < tolerance
    assert torch.equal(ours[3, 8:16], value[3] / 2)
    gated, window, weight = draw(2, 5, 16), draw(2, 14, 16), draw(16, 4)
    wanted = reference.dilated_conv(gated.double(), window.double(), weight.double(), 3)
    assert float((CPU.dilated_conv(gated, window, weight, 3) - wanted).norm() / wanted.norm()) < tolerance
