"""FP8 E4M3 with one scale per tensor: W = float8 · scale.

Source: NVIDIA ModelOpt's export of `FP8` tables, whose `weight_scale` [1] is bfloat16.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST_E4M3 = 448.0


@dataclass(frozen=True)
class Fp8:
    """A quantised tensor: `values` of any shape in float8_e4m3fn, `scale` [1] bfloat16, which multiplies."""

    values: Tensor
    scale: Tensor


def quantise_fp8(weight: Tensor) -> Fp8:
    """Round a tensor of any float dtype to the nearest values; the scale maps the largest magnitude to 448."""
    amax = weight.float().abs().amax().reshape(1)
    scale = torch.where(amax > 0, amax / _LARGEST_E4M3, 1).bfloat16()
    # A scale rounded down would push the largest value past 448, which E4M3 turns into NaN.
    values = (weight.float() / scale.float()).clamp(-_LARGEST_E4M3, _LARGEST_E4M3)
    return Fp8(values.to(torch.float8_e4m3fn), scale)


def dequantise_fp8(stored: Fp8) -> Tensor:
    """The tensor in float32."""
    return stored.values.float() * stored.scale.float()
