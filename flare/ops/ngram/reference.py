"""Reference of `ngram_rows`, `gate_streams` and `dilated_conv`: token by token, in plain numbers."""

from math import copysign, exp, sqrt

import torch
from torch import Tensor

from flare.ops.ngram.tables import NgramHash


def ngram_rows(window: Tensor, hashing: NgramHash) -> Tensor:
    """See the card."""
    multipliers, sizes, offsets = (tensor.tolist() for tensor in (hashing.multipliers, hashing.sizes, hashing.offsets))
    order = len(multipliers)
    heads_per_order = len(sizes) // (order - 1)
    rows = []
    for ids in window.tolist():
        for place in range(order - 1, len(ids)):
            lags = [ids[place]]
            for lag in range(1, order):
                cut = hashing.eos in ids[place - lag : place]
                lags.append(hashing.eos if cut else ids[place - lag])
            mixed, row = lags[0] * multipliers[0], []
            for lag in range(1, order):
                mixed ^= lags[lag] * multipliers[lag]
                for head in range((lag - 1) * heads_per_order, lag * heads_per_order):
                    row.append(mixed % sizes[head] + offsets[head])
            rows.append(row)
    return torch.tensor(rows)


def gate_streams(key: Tensor, query: Tensor, value: Tensor) -> Tensor:
    """See the card."""
    hidden = value.shape[1]
    streams = key.shape[1] // hidden
    rows = []
    for k, q, v in zip(key, query, value, strict=True):
        for k_stream, q_stream in zip(k.chunk(streams), q.chunk(streams), strict=True):
            likeness = float(k_stream @ q_stream) / sqrt(hidden)
            rooted = copysign(sqrt(max(abs(likeness), 1e-6)), likeness) if likeness else 0.0
            rows.append(v / (1 + exp(-rooted)))
    return torch.stack(rows).view(key.shape)


def dilated_conv(gated: Tensor, window: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """See the card."""
    y = gated.clone()
    for row in range(gated.shape[1]):
        taps = [weight[:, tap] * window[:, row + tap * dilation] for tap in range(weight.shape[1])]
        z = torch.stack(taps).sum(0)
        y[:, row] += z / (1 + torch.exp(-z))
    return y
