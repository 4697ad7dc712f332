"""Zero-centred norms and the arithmetic of hyperconnections, against golden outputs and their own definitions."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare import ops
from flare.ops.hyperconnection import reference
from flare.ops.norm import reference as norm
from flare.ops.operators import Operators
from tests.goldens import golden

CPU = ops.load("cpu")
STREAMS = 4
CASES = [f"qwen38/hyperconnection_{index}" for index in range(3)]
# bfloat16: the last rounding is 2^-9; float32: a few of 2^-24
TOLERANCES = [(torch.float64, 1e-14), (torch.float32, 5e-7), (torch.bfloat16, 4e-3)]
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def check_norms(operators: Operators, case: str) -> None:
    """b12x rounds where we do: every bit agrees."""
    t, params = golden(case)
    normed = operators.zero_centred_norm(t["state"], t["hc_norm"], params["eps"], STREAMS)
    assert torch.equal(normed, t["normed"])
    following = operators.zero_centred_norm(t["combined"], t["next_hc_norm"], params["eps"], STREAMS)
    assert torch.equal(following, t["next_normed"])


def check_write(operators: Operators, case: str) -> None:
    """b12x computes weight, product and sum in float32 and rounds once, as we do: every bit agrees."""
    t, _ = golden(case)
    assert torch.equal(operators.inject_streams(t["state"], t["block_output"], t["injection_logits"]), t["combined"])


def check_read(operators: Operators, case: str) -> None:
    """b12x rounds σ, each product (2^-8 of itself each) and the mean to bfloat16; we round the mean alone."""
    t, _ = golden(case)
    low = operators.scaled_silu(torch.nn.functional.linear(t["normed"], t["input_mix_weight_down"]), STREAMS)
    assert torch.equal(low, t["lowrank"])
    x = operators.mix_streams(t["normed"], t["gate_logits"], STREAMS)
    parts = (torch.sigmoid(t["gate_logits"].double()) * t["normed"].double()).unflatten(1, (STREAMS, -1))
    bound = 2**-7 * parts.abs().mean(1) + 2**-7 * parts.mean(1).abs()
    assert ((x.double() - t["block_input"].double()).abs() <= bound).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("check", [check_norms, check_write, check_read])
def test_golden_outputs(check, case):
    check(CPU, case)


def plain_weight(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight - 1, eps, groups)


def one_mean(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    return CPU.zero_centred_norm(x, weight, eps)


def halved_injection(residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
    return CPU.inject_streams(residual, y / 2, injection)


def undivided_logits(residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
    return CPU.inject_streams(residual, y, injection * injection.shape[1])


def summed_streams(normed: Tensor, gate: Tensor, streams: int) -> Tensor:
    return CPU.mix_streams(normed, gate, streams) * streams


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (check_norms, replace(CPU, zero_centred_norm=plain_weight)),
        (check_norms, replace(CPU, zero_centred_norm=one_mean)),
        (check_write, replace(CPU, inject_streams=halved_injection)),
        (check_write, replace(CPU, inject_streams=undivided_logits)),
        (check_read, replace(CPU, mix_streams=summed_streams)),
        (check_read, replace(CPU, scaled_silu=lambda x, divisor: torch.nn.functional.silu(x) / divisor)),
    ],
    ids=["weight not 1 + w", "one mean", "injection without 2", "injection not / S", "sum of streams", "silu then / S"],
)
@pytest.mark.parametrize("case", CASES)
def test_golden_outputs_refuse_mutants(check, mutant, case):
    with pytest.raises(AssertionError):
        check(mutant, case)


@every_dtype
@pytest.mark.parametrize("groups", [1, 4])
def test_zero_centred_norm_equals_the_definition(dtype, tolerance, groups):
    x, weight = draw(5, 48, dtype=dtype), 0.3 * draw(48, dtype=dtype, seed=1)
    y = CPU.zero_centred_norm(x, weight, 1e-6, groups)
    assert y.dtype == dtype
    assert error(y, norm.zero_centred_norm(x.double(), weight.double(), 1e-6, groups)) < tolerance


def test_zero_centred_norm_adds_eps_inside_the_root():
    x = draw(2, 64) * 1e-3
    weight = torch.zeros(64).double()
    assert error(CPU.zero_centred_norm(x, weight, 1e-6, 4), norm.zero_centred_norm(x, weight, 1e-6, 4)) < 1e-14


@every_dtype
def test_streams_equal_their_definition(dtype, tolerance):
    residual, y, injection = (draw(6, n, dtype=dtype, seed=n) for n in (64, 16, 4))
    gate = draw(6, 64, dtype=dtype, seed=9)
    for ours, wanted in [
        (
            CPU.inject_streams(residual, y, injection),
            reference.inject_streams(residual.double(), y.double(), injection.double()),
        ),
        (CPU.mix_streams(residual, gate, 4), reference.mix_streams(residual.double(), gate.double(), 4)),
        (CPU.scaled_silu(gate, 4), reference.scaled_silu(gate.double(), 4)),
    ]:
        assert ours.dtype == dtype
        assert error(ours, wanted) < tolerance


def test_a_zero_logit_adds_the_block_output_unchanged():
    residual, y = draw(3, 32), draw(3, 8)
    written = CPU.inject_streams(residual, y, torch.zeros(3, 4).double())
    assert torch.equal(written, residual + y.repeat(1, 4))


def test_writing_leaves_the_old_residual_alone():
    residual = draw(3, 32)
    before = residual.clone()
    CPU.inject_streams(residual, draw(3, 8), draw(3, 4))
    assert torch.equal(residual, before)
