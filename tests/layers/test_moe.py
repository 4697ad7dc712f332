"""The sparse block as a layer: golden outputs through declared names, dense and NVFP4."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare.layers.moe import MoeShape, SparseMoe
from flare.ops.formats.nvfp4 import Nvfp4, dequantise_nvfp4
from flare.ops.operators import Operators
from tests.goldens import golden
from tests.layers.binding import CPU, draw, random_weights, stored

NAME = "layers.0.mlp"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
SHAPE = MoeShape(hidden=32, experts=8, top_k=2, ffn=16, shared_ffn=16, expert_format="dense")


def common(t: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """What both goldens hold in bfloat16, under declared names."""
    weights = {f"{NAME}.gate.weight": t["gate"], f"{NAME}.shared_expert_gate.weight": t["shared_expert_gate"]}
    weights |= {f"{NAME}.shared_expert.{of}.weight": t[f"shared.{of}"] for of in PROJECTIONS}
    return {name: weight.to(dtype) for name, weight in weights.items()}


def dense_golden(dtype: torch.dtype) -> dict[str, Tensor]:
    t, _ = golden("qwen38/moe_bf16")
    gate, up = t["experts_gate_up"].chunk(2, 1)
    experts = dict(zip(PROJECTIONS, (gate, up, t["experts_down"]), strict=True))
    return common(t, dtype) | {f"{NAME}.experts.{of}.weight": weight.to(dtype) for of, weight in experts.items()}


def nvfp4_golden(dtype: torch.dtype) -> dict[str, Tensor]:
    t, _ = golden("qwen38/moe_nvfp4_w4a16")
    return common(t, dtype) | {
        f"{NAME}.experts.{of}.{part}": torch.stack([t[f"mlp.experts.{e}.{of}.{part}"] for e in range(8)])
        for of in PROJECTIONS
        for part in ("weight", "weight_scale", "weight_scale_2")
    }


def output(shape: MoeShape, dtype: str, weights: dict[str, Tensor], x: Tensor, operators: Operators = CPU) -> Tensor:
    layer = SparseMoe(NAME, shape, dtype)
    layer.bind(stored(layer.declare(), weights), operators)
    return layer(x)


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y.double() - wanted.double()).norm() / wanted.double().norm())


def test_the_dense_block_equals_transformers_in_float32():
    t, _ = golden("qwen38/moe_bf16")
    # float32 sums of 32 and 16 products in another order
    assert error(output(SHAPE, "float32", dense_golden(torch.float32), t["x"].float()), t["out_f32"]) < 1e-6


def test_the_dense_block_equals_transformers_in_bfloat16():
    t, _ = golden("qwen38/moe_bf16")
    y = output(SHAPE, "bfloat16", dense_golden(torch.bfloat16), t["x"])
    assert y.dtype == torch.bfloat16
    # Up to eight roundings of at most 2^-8, each about a third of that in the mean, lie between the two.
    assert error(y, t["out_f32"]) < 2**-7
    assert error(y, t["out"]) < 2**-7


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_nvfp4_block_equals_transformers(dtype):
    t, _ = golden("qwen38/moe_nvfp4_w4a16")
    torch_dtype = getattr(torch, dtype)
    y = output(replace(SHAPE, expert_format="nvfp4"), dtype, nvfp4_golden(torch_dtype), t["x"].to(torch_dtype))
    # the oracle's dequantised weights were rounded to bfloat16: three matrices, 2^-8 of an element each
    assert error(y, t["out_f32"]) < 3 * 2**-8


def test_the_nvfp4_block_equals_a_dense_block_of_its_values():
    weights, x = nvfp4_golden(torch.float64), draw(7, 32)
    values = {name: weight for name, weight in weights.items() if ".experts." not in name}
    for of in PROJECTIONS:
        name = f"{NAME}.experts.{of}"
        parts = (weights[f"{name}.{part}"] for part in ("weight", "weight_scale", "weight_scale_2"))
        values[f"{name}.weight"] = dequantise_nvfp4(Nvfp4(*parts)).double()
    y = output(replace(SHAPE, expert_format="nvfp4"), "float64", weights, x)
    assert torch.equal(y, output(SHAPE, "float64", values, x))


@pytest.mark.parametrize(
    "mutant",
    [
        replace(CPU, add_gated=lambda routed, shared, gate: routed + shared),
        replace(CPU, add_gated=lambda routed, shared, gate: routed),
        replace(CPU, route=lambda logits, k: CPU.route(logits, k + 1)),
        replace(CPU, route=lambda logits, k: CPU.route(-logits, k)),
    ],
    ids=["shared expert not gated", "no shared expert", "one expert more", "least likely experts"],
)
def test_mutants_leave_the_golden_output(mutant):
    t, _ = golden("qwen38/moe_bf16")
    assert error(output(SHAPE, "float32", dense_golden(torch.float32), t["x"].float(), mutant), t["out_f32"]) > 1e-3


def test_swapped_gate_and_up_leave_the_golden_output():
    t, _ = golden("qwen38/moe_bf16")
    weights = dense_golden(torch.float32)
    gate, up = (f"{NAME}.experts.{of}.weight" for of in ("gate_proj", "up_proj"))
    weights[gate], weights[up] = weights[up], weights[gate]
    assert error(output(SHAPE, "float32", weights, t["x"].float()), t["out_f32"]) > 1e-3


def test_rows_do_not_touch_each_other():
    weights = random_weights(SparseMoe(NAME, SHAPE, "float64").declare())
    x = draw(9, 32)
    clean = output(SHAPE, "float64", weights, x)
    x[4] = torch.nan
    poisoned = output(SHAPE, "float64", weights, x)
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    assert (clean[kept] - poisoned[kept]).abs().max() < 1e-12
    assert (clean[:1] - output(SHAPE, "float64", weights, x[:1])).abs().max() < 1e-12


def test_stored_names_and_shapes_are_those_of_the_checkpoint():
    shape = MoeShape(hidden=2560, experts=512, top_k=10, ffn=640, shared_ffn=640, expert_format="nvfp4")
    declared = {
        weight.name: (weight.shape, weight.dtype) for weight in SparseMoe(NAME, shape, "bfloat16").declare().weights
    }
    assert declared[f"{NAME}.gate.weight"] == ((512, 2560), "bfloat16")
    assert declared[f"{NAME}.shared_expert_gate.weight"] == ((1, 2560), "bfloat16")
    assert declared[f"{NAME}.shared_expert.down_proj.weight"] == ((2560, 640), "bfloat16")
    assert declared[f"{NAME}.experts.up_proj.weight"] == ((512, 640, 1280), "uint8")
    assert declared[f"{NAME}.experts.up_proj.weight_scale"] == ((512, 640, 160), "float8_e4m3fn")
    assert declared[f"{NAME}.experts.down_proj.weight"] == ((512, 2560, 320), "uint8")
    assert declared[f"{NAME}.experts.down_proj.weight_scale"] == ((512, 2560, 40), "float8_e4m3fn")
    assert declared[f"{NAME}.experts.down_proj.weight_scale_2"] == ((512,), "float32")
    assert len(declared) == 5 + 9
