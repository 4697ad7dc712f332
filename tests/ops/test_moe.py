"""Routing and experts, against golden outputs of transformers' block and their own definitions."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flare import ops
from flare.ops.formats.nvfp4 import Nvfp4, dequantise_nvfp4, quantise_nvfp4
from flare.ops.moe import DenseMatrices, Experts, Routing, reference
from tests.goldens import golden

CPU = ops.load("cpu")
TOLERANCES = [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 4e-3)]
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def plain_experts(
    experts: int = 6, hidden: int = 32, ffn: int = 16, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    shapes = [(experts, ffn, hidden), (experts, ffn, hidden), (experts, hidden, ffn)]
    return [(draw(*shape, seed=seed) / shape[-1] ** 0.5).to(dtype) for seed, shape in enumerate(shapes, 1)]


def dense(matrices: list[Tensor]) -> Experts:
    gate, up, down = (DenseMatrices(matrix) for matrix in matrices)
    return Experts(gate, up, down)


def test_golden_routing_chooses_the_same_experts():
    for name in ("qwen38/moe_bf16", "qwen38/moe_nvfp4_w4a16"):
        t, params = golden(name)
        routing = CPU.route(t["router_logits"], params["top_k"])
        assert torch.equal(routing.experts, t["topk_ids"])
        # transformers rounds the weights to bfloat16: at most 2^-8 of a weight
        assert ((routing.weights - t["topk_weights"].float()).abs() <= 2**-8 * routing.weights).all()


@every_dtype
def test_routing_equals_the_definition(dtype, tolerance):
    logits = draw(20, 12, dtype=dtype)
    routing, wanted = CPU.route(logits, 3), reference.route(logits.double(), 3)
    assert torch.equal(routing.experts, wanted.experts)
    assert routing.weights.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert error(routing.weights, wanted.weights) < tolerance
    assert error(routing.weights.sum(1), torch.ones(20)) < 1e-6


def test_the_lower_id_wins_a_tie():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])
    assert CPU.route(logits, 3).experts.tolist() == [[1, 3, 2]]


def renormalised(logits: Tensor, top_k: int) -> Routing:
    """What routing without the renormalisation would give."""
    laws = torch.softmax(logits.float(), -1)
    chosen, order = laws.topk(top_k)
    return Routing(order, chosen)


def test_golden_routing_refuses_weights_that_were_not_renormalised():
    t, params = golden("qwen38/moe_bf16")
    weights = renormalised(t["router_logits"], params["top_k"]).weights
    assert ((weights - t["topk_weights"].float()).abs() > 2**-8 * weights).any()


@every_dtype
def test_experts_equal_the_definition(dtype, tolerance):
    x, matrices = draw(11, 32, dtype=dtype), plain_experts(dtype=dtype)
    routing = CPU.route(draw(11, 6, seed=7).to(dtype), 2)
    y = CPU.experts(x, routing, dense(matrices))
    wanted = reference.experts(
        x.double(), Routing(routing.experts, routing.weights.double()), *(matrix.double() for matrix in matrices)
    )
    assert y.dtype == dtype
    assert error(y, wanted) < tolerance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nvfp4_experts_equal_their_dequantised_twins(dtype):
    matrices = plain_experts()
    stacked = [quantise_nvfp4(matrix) for matrix in matrices]
    x, routing = draw(5, 32, dtype=dtype), CPU.route(draw(5, 6, seed=7), 2)
    # E2M1 · E4M3 · scale_2 is exact in float64, and the dense twin holds the same float32 values
    wanted = CPU.experts(x.double(), routing, dense([dequantise_nvfp4(matrix).double() for matrix in stacked]))
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 4e-3}[dtype]
    assert error(CPU.experts(x, routing, Experts(*stacked)), wanted) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_depends_on_itself_alone_bit_by_bit(dtype):
    torch.set_num_threads(1)
    x, weights = draw(40, 96, dtype=dtype), dense(plain_experts(4, 96, 80, dtype))
    routing = CPU.route(draw(40, 4, seed=7), 2)
    together = CPU.experts(x, routing, weights)
    for rows in (slice(0, 1), slice(3, 5), slice(7, 15), slice(20, 37)):
        part = CPU.experts(x[rows], Routing(routing.experts[rows], routing.weights[rows]), weights)
        assert torch.equal(part, together[rows])


def test_a_poisoned_row_reaches_no_other():
    x, weights = draw(4, 32), dense(plain_experts())
    logits = draw(4, 6, seed=7)
    clean = CPU.experts(x, CPU.route(logits, 2), weights)
    x[2], logits[2] = torch.nan, torch.nan
    poisoned = CPU.experts(x, CPU.route(logits, 2), weights)
    assert torch.equal(clean[[0, 1, 3]], poisoned[[0, 1, 3]])


def test_unchosen_experts_are_not_read():
    x, matrices, routing = draw(4, 32), plain_experts(), CPU.route(draw(4, 6, seed=7), 2)
    clean = CPU.experts(x, routing, dense(matrices))
    unused = next(expert for expert in range(6) if expert not in routing.experts)
    for matrix in matrices:
        matrix[unused] = torch.nan
    assert torch.equal(CPU.experts(x, routing, dense(matrices)), clean)


@every_dtype
def test_add_gated_equals_the_definition(dtype, tolerance):
    routed, shared, gate = draw(5, 8, dtype=dtype), draw(5, 8, dtype=dtype, seed=1), draw(5, 1, dtype=dtype, seed=2)
    wanted = reference.add_gated(routed.double(), shared.double(), gate.double())
    assert error(CPU.add_gated(routed, shared, gate), wanted) < tolerance


def golden_experts(tensors: dict[str, Tensor]) -> Experts:
    def stacked(projection: str) -> Nvfp4:
        parts = [
            torch.stack([tensors[f"mlp.experts.{expert}.{projection}.{part}"] for expert in range(8)])
            for part in ("weight", "weight_scale", "weight_scale_2")
        ]
        return Nvfp4(*parts)

    return Experts(stacked("gate_proj"), stacked("up_proj"), stacked("down_proj"))


def golden_block(weights: Callable[[dict[str, Tensor]], Experts]) -> float:
    """Largest difference from transformers' float32 block on the same NVFP4 weights."""
    t, params = golden("qwen38/moe_nvfp4_w4a16")
    wide = {name: tensor.float() for name, tensor in t.items() if tensor.dtype == torch.bfloat16}
    x = wide["x"]
    routed = CPU.experts(x, CPU.route(functional.linear(x, wide["gate"]), params["top_k"]), weights(t))
    gated = functional.silu(functional.linear(x, wide["shared.gate_proj"]))
    gated = gated * functional.linear(x, wide["shared.up_proj"])
    y = CPU.add_gated(
        routed, functional.linear(gated, wide["shared.down_proj"]), functional.linear(x, wide["shared_expert_gate"])
    )
    return error(y, t["out_f32"].double())


def test_the_golden_nvfp4_block_agrees():
    def rounded(tensors: dict[str, Tensor]) -> Experts:
        stored = golden_experts(tensors)
        matrices = [matrix for matrix in (stored.gate, stored.up, stored.down) if isinstance(matrix, Nvfp4)]
        return dense([dequantise_nvfp4(matrix).bfloat16().float() for matrix in matrices])

    # The oracle multiplied by dequantised weights rounded to bfloat16; with its rounding float32 is all that is left,
    # without it three matrices differ by up to 2^-8 of their elements.
    assert golden_block(rounded) < 1e-6
    assert golden_block(golden_experts) < 3 * 2**-8


def test_the_golden_nvfp4_block_refuses_swapped_nibbles():
    def swapped(tensors: dict[str, Tensor]) -> Experts:
        right = golden_experts(tensors)
        turned = [
            replace(matrix, packed=matrix.packed >> 4 | matrix.packed << 4)
            for matrix in (right.gate, right.up, right.down)
            if isinstance(matrix, Nvfp4)
        ]
        return Experts(*turned)

    assert golden_block(swapped) > 0.1
