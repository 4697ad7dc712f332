"""NVFP4 and FP8: what is stored is read as its writer meant it, and writing rounds to the nearest value."""

import pytest
import torch

from flare.ops.formats.fp8 import Fp8, dequantise_fp8, quantise_fp8
from flare.ops.formats.nvfp4 import Nvfp4, dequantise_nvfp4, quantise_nvfp4
from tests.goldens import golden

GRID = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def stored(tensors, projection: str) -> Nvfp4:
    name = f"mlp.experts.0.{projection}.weight"
    return Nvfp4(tensors[name], tensors[f"{name}_scale"], tensors[f"{name}_scale_2"])


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_modelopt_matrix_is_read_bit_for_bit(projection):
    tensors, _ = golden("qwen38/moe_nvfp4_w4a16")
    assert torch.equal(dequantise_nvfp4(stored(tensors, projection)), tensors[f"dequant.{projection}"])


def test_swapped_nibbles_are_another_matrix():
    tensors, _ = golden("qwen38/moe_nvfp4_w4a16")
    right = stored(tensors, "up_proj")
    swapped = Nvfp4(right.packed >> 4 | right.packed << 4, right.scale, right.scale_2)
    assert not torch.equal(dequantise_nvfp4(swapped), tensors["dequant.up_proj"])


def test_the_even_element_is_in_the_low_nibble():
    scale = torch.ones(1, 1).to(torch.float8_e4m3fn)
    packed = torch.zeros(1, 8, dtype=torch.uint8)
    packed[0, 0] = 0x2 | 0xD << 4
    assert dequantise_nvfp4(Nvfp4(packed, scale, torch.tensor(3.0)))[0, :2].tolist() == [3.0, -9.0]


def test_values_of_the_grid_survive_nvfp4_exactly():
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 8, (3, 5, 64), generator=generator)
    codes[..., ::16] = 7  # every block reaches the largest magnitude, so that its scale is found again
    exponents = torch.tensor([0.25, 1, 8, 448])  # block scales E4M3 holds; 448 fixes scale_2
    weight = GRID[codes] * (1 - 2 * torch.randint(0, 2, codes.shape, generator=generator))
    weight = (weight.unflatten(-1, (4, 16)) * exponents[:, None]).flatten(-2)
    quantised = quantise_nvfp4(weight)
    assert quantised.packed.shape == (3, 5, 32) and quantised.scale.shape == (3, 5, 4)
    assert torch.equal(quantised.scale_2, torch.ones(3))
    assert torch.equal(dequantise_nvfp4(quantised), weight)


def test_nvfp4_rounds_to_the_nearest_code_and_ties_to_the_even_one():
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    weight = torch.zeros(1, 16)
    weight[0, :7], weight[0, 7:14], weight[0, 15] = midpoints, -midpoints * 1.001, 6
    quantised = quantise_nvfp4(weight * 448)
    restored = dequantise_nvfp4(quantised)[0] / 448
    assert restored[:7].tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert restored[7:14].tolist() == [-0.5, -1, -1.5, -2, -3, -4, -6]


def test_nvfp4_errs_by_half_a_step_of_its_block():
    weight = torch.randn(2, 8, 128, generator=torch.Generator().manual_seed(2)) * torch.logspace(-2, 1, 8)[:, None]
    quantised = quantise_nvfp4(weight)
    # Half the widest step (4 to 6) is 1/6 of the block's peak; E4M3 rounds the scale by up to 1/16 of itself, and below
    # its normals by half of 2^-9.
    peaks = weight.unflatten(-1, (-1, 16)).abs().amax(-1, keepdim=True)
    smallest = 6 * 2.0**-10 * quantised.scale_2[:, None, None, None]
    bound = peaks * (1 / 6 + 1 / 16 + 0.01) + smallest
    assert ((dequantise_nvfp4(quantised) - weight).unflatten(-1, (-1, 16)).abs() <= bound).all()


def test_zeros_stay_zeros():
    assert dequantise_nvfp4(quantise_nvfp4(torch.zeros(2, 3, 32))).eq(0).all()
    assert dequantise_fp8(quantise_fp8(torch.zeros(3, 32))).eq(0).all()


def test_fp8_keeps_the_largest_value_finite_and_errs_by_half_a_step():
    for seed in range(20):
        weight = torch.randn(7, 33, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed - 10)
        stored_fp8 = quantise_fp8(weight)
        assert (
            isinstance(stored_fp8, Fp8) and stored_fp8.scale.shape == (1,) and stored_fp8.scale.dtype == torch.bfloat16
        )
        restored = dequantise_fp8(stored_fp8)
        # three stored mantissa bits: half a step is 2^-4 of the value; below 2^-6 steps are 2^-9; the scale itself is
        # rounded by 2^-9, which the clamp at 448 shows
        bound = weight.abs() * (2**-4 + 2**-8) + 2**-10 * stored_fp8.scale.float()
        assert ((restored - weight).abs() <= bound).all()
