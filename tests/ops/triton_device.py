"""Where Triton kernels are tested: on a CUDA device where there is one, else in Triton's interpreter (see conftest).

The interpreter multiplies bfloat16 wrongly, so there kernels are tested in float32.
"""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# One rounding of a bfloat16 result is 2^−9, and a norm's product is rounded once more before it is summed; float32 sums
# of K terms lose about sqrt(K) · 2^−24.
TOLERANCES = [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)] if DEVICE == "cuda" else [(torch.float32, 1e-6)]


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance, in float64 on the CPU."""
    y, expected = y.double().cpu(), expected.double().cpu()
    return float((y - expected).norm() / expected.norm())


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal values, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
