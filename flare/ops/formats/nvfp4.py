"""NVFP4 in ModelOpt's layout: four-bit floats in blocks of 16, an E4M3 scale per block, a float32 scale per matrix.

    W[o, i] = e2m1(code[o, i]) · scale[o, i / 16] · scale_2

Byte j of a row holds element 2j in its low nibble and 2j + 1 in its high nibble. A code is a sign (bit 3) and a
magnitude of 0, 0.5, 1, 1.5, 2, 3, 4 or 6. Both scales multiply. Any leading axes (experts) are allowed.

Source: NVIDIA ModelOpt's export of `NVFP4` linears; scale_2 = amax / (6 · 448).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 16
"""Elements that share one E4M3 scale."""

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST_E2M1, _LARGEST_E4M3 = 6.0, 448.0
# Halfway values go to the even code: a midpoint whose upper neighbour is even belongs to that neighbour.
_MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_UPPER_IS_EVEN = torch.tensor([False, True, False, True, False, True, False])
_BOUNDARIES = torch.where(_UPPER_IS_EVEN, torch.nextafter(_MIDPOINTS, torch.zeros(())), _MIDPOINTS)
_VALUES = torch.tensor([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)])


@dataclass(frozen=True)
class Nvfp4:
    """One or many quantised matrices.

    Attributes:
        packed: [..., out, in / 2] uint8; scale: [..., out, in / 16] float8_e4m3fn.
        scale_2: [...] float32, one per matrix.
    """

    packed: Tensor
    scale: Tensor
    scale_2: Tensor


def quantise_nvfp4(weight: Tensor) -> Nvfp4:
    """Round matrices [..., out, in] of any float dtype to the nearest codes; `in` is a multiple of 16."""
    blocks = weight.float().unflatten(-1, (-1, BLOCK))
    peaks = blocks.abs().amax(-1)
    amax = peaks.amax((-1, -2))
    scale_2 = torch.where(amax > 0, amax / (_LARGEST_E2M1 * _LARGEST_E4M3), 1)
    scale = (peaks / _LARGEST_E2M1 / scale_2[..., None, None]).clamp(max=_LARGEST_E4M3).to(torch.float8_e4m3fn)
    steps = (scale.float() * scale_2[..., None, None]).unsqueeze(-1)
    units = blocks / steps.where(steps > 0, 1)
    sizes = torch.bucketize(units.abs(), _BOUNDARIES.to(units.device)).to(torch.uint8)
    codes = sizes + 8 * units.signbit().to(torch.uint8)
    pairs = codes.where(steps > 0, 0).flatten(-2).unflatten(-1, (-1, 2))
    return Nvfp4(pairs[..., 0] | pairs[..., 1] << 4, scale, scale_2)


def dequantise_nvfp4(stored: Nvfp4) -> Tensor:
    """Matrices [..., out, in] float32."""
    codes = torch.stack((stored.packed & 15, stored.packed >> 4), dim=-1).flatten(-2)
    values = _VALUES.to(codes.device)[codes.long()].unflatten(-1, (-1, BLOCK))
    scaled = values * stored.scale.float().unsqueeze(-1)
    return scaled.flatten(-2) * stored.scale_2[..., None, None]
