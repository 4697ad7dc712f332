"""CUDA rotary positions: a float32 table on the device, turned by the kernel that reads the heads.

A bfloat16 table would round every cosine to eight bits for nothing: the table is small and read once a round.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotary_table(positions: int, dim: int, base: float, dtype: torch.dtype, device: str = "cuda") -> Tensor:
    """Cosines and signed sines [P, 2, D] float32, whatever the dtype of the model."""
    assert dtype in (torch.bfloat16, torch.float32), f"no CUDA operators for {dtype}"
    frequency = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
    cosine, sine = angle.cos(), angle.sin()
    rows = torch.stack((torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)), dim=1)
    return rows.to(device)


def rotary_rows(table: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [R, 1, D] float32 of positions [R], views of one gather."""
    cosines, signed_sines = table.index_select(0, positions).split(1, dim=1)
    return cosines, signed_sines


def apply_rotary(q: Tensor, k: Tensor, cosines: Tensor, signed_sines: Tensor) -> tuple[Tensor, Tensor]:
    """See the card."""
    return _turn(q, cosines, signed_sines), _turn(k, cosines, signed_sines)


def _turn(heads: Tensor, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    rows, count, dim = heads.shape
    assert heads.stride(2) == 1, "a head lies in one piece"
    y = torch.empty_like(heads, memory_format=torch.contiguous_format)
    turn_heads[(rows, count)](
        heads,
        cosines,
        signed_sines,
        y,
        heads.stride(0),
        heads.stride(1),
        cosines.stride(0),
        DIM=dim,
        BLOCK=triton.next_power_of_2(dim),
        num_warps=1,
    )
    return y


@triton.jit
def turn_heads(
    heads, cosines, signed_sines, y, heads_row, heads_head, turn_row, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (r, h) turns head h of row r in float32."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    inside = channel < DIM
    start = heads + row * heads_row + head * heads_head
    own = tl.load(start + channel, mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(start + (channel + DIM // 2) % DIM, mask=inside, other=0.0).to(tl.float32)
    cosine = tl.load(cosines + row * turn_row + channel, mask=inside, other=0.0)
    sine = tl.load(signed_sines + row * turn_row + channel, mask=inside, other=0.0)
    turned = own * cosine + partner * sine
    tl.store(y + (row * tl.num_programs(1) + head) * DIM + channel, turned.to(y.dtype.element_ty), mask=inside)
