"""CPU n-gram embeddings: hash, lookup, gate and dilated convolution, in torch."""

from math import sqrt

import torch
from torch import Tensor

from flare.ops.curves import sigmoid, silu
from flare.ops.formats.fp8 import Fp8, dequantise_fp8
from flare.ops.formats.nvfp4 import Nvfp4, dequantise_nvfp4
from flare.ops.ngram.tables import NgramHash, NgramTable
from flare.ops.widening import widened

_SMALLEST_LIKENESS = 1e-6


def ngram_rows(window: Tensor, hashing: NgramHash) -> Tensor:
    """See the card."""
    order = hashing.multipliers.shape[0]
    heads_per_order = hashing.sizes.shape[0] // (order - 1)
    width = window.shape[1] - order + 1
    newest = window[:, order - 1 :]
    mixed, cut, mixes = newest * hashing.multipliers[0], torch.zeros_like(newest, dtype=torch.bool), []
    for lag in range(1, order):
        older = window[:, order - 1 - lag :][:, :width]
        cut = cut | (older == hashing.eos)
        mixed = mixed ^ (older.masked_fill(cut, hashing.eos) * hashing.multipliers[lag])
        mixes.append(mixed)
    by_order = torch.stack(mixes, dim=-1).flatten(0, 1)
    by_head = by_order.repeat_interleave(heads_per_order, dim=-1)
    return by_head.remainder(hashing.sizes) + hashing.offsets


def ngram_lookup(table: NgramTable, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """See the card."""
    return _rows(table, rows.flatten()).view(rows.shape[0], -1).to(dtype)


def gate_streams(key: Tensor, query: Tensor, value: Tensor) -> Tensor:
    """See the card."""
    hidden = value.shape[1]
    likeness = (widened(key) * widened(query)).unflatten(-1, (-1, hidden)).sum(-1) / sqrt(hidden)
    rooted = likeness.abs().clamp(min=_SMALLEST_LIKENESS).sqrt() * likeness.sign()
    gates = sigmoid(rooted).to(value.dtype)
    return (widened(gates)[:, :, None] * widened(value)[:, None, :]).flatten(1).to(value.dtype)


def dilated_conv(gated: Tensor, window: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """See the card."""
    width = gated.shape[1]
    wide, taps = widened(window), widened(weight)
    z = sum(wide[:, tap * dilation :][:, :width] * taps[:, tap] for tap in range(weight.shape[1]))
    assert isinstance(z, Tensor)
    return (widened(gated) + silu(z)).to(gated.dtype)


def _rows(table: NgramTable, index: Tensor) -> Tensor:
    match table.rows:
        case Fp8(values, scale):
            return dequantise_fp8(Fp8(values[index], scale))
        case Nvfp4(packed, scale, scale_2):
            # Each looked-up row is a matrix of one row, so that one scale serves however many there are.
            return dequantise_nvfp4(Nvfp4(packed[index], scale[index], scale_2.view(())))
        case plain:
            return plain[index]
