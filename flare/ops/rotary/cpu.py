"""CPU rotary positions: with the sign kept in the sines, turning is one roll, one product and one fused sum."""

import torch
from torch import Tensor


def rotary_table(positions: int, dim: int, base: float, dtype: torch.dtype) -> Tensor:
    """Cosines and signed sines [P, 2, D]."""
    frequency = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
    if dtype == torch.float64:
        angle = angle.double()
    cosine, sine = angle.cos(), angle.sin()
    cosines, signed_sines = torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
    return torch.stack((cosines, signed_sines), dim=1).to(dtype)


def rotary_rows(table: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [R, 1, D] of positions [R]."""
    cosines, signed_sines = table.index_select(0, positions).split(1, dim=1)
    return cosines, signed_sines


def apply_rotary(q: Tensor, k: Tensor, cosines: Tensor, signed_sines: Tensor) -> tuple[Tensor, Tensor]:
    """See the card. Heads that lie side by side, as in a fused projection, are turned together."""
    query_heads, key_heads = q.shape[1], k.shape[1]
    if _side_by_side(q, k):
        heads = q.as_strided((q.shape[0], query_heads + key_heads, q.shape[2]), q.stride())
        turned_q, turned_k = _turn(heads, cosines, signed_sines).split((query_heads, key_heads), dim=1)
        return turned_q, turned_k
    return _turn(q, cosines, signed_sines), _turn(k, cosines, signed_sines)


def _turn(heads: Tensor, cosines: Tensor, signed_sines: Tensor) -> Tensor:
    return torch.addcmul(heads * cosines, heads.roll(heads.shape[-1] // 2, -1), signed_sines)


def _side_by_side(q: Tensor, k: Tensor) -> bool:
    """Whether k starts where the heads of q end, in the same storage and with the same strides."""
    return (
        q.stride() == k.stride()
        and k.storage_offset() == q.storage_offset() + q.shape[1] * q.stride(1)
        and k.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    )
