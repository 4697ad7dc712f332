"""CPU short convolution: all lanes at once, a tap at a time.

Only elementwise kernels touch a row, so its bits depend on neither width nor batch.
"""

import torch
from torch import Tensor

from flare.ops.curves import silu
from flare.ops.short_conv.lanes import Boundary, LaneRows


def short_conv(x: Tensor, weight: Tensor, history: Tensor, lanes: LaneRows) -> Tensor:
    """See the card."""
    width, wide = x.shape[1], torch.promote_types(x.dtype, torch.float32)
    inputs, taps = _inputs(x, history, lanes).to(wide), weight.to(wide).T.contiguous()
    total = inputs[:, :width] * taps[0]
    for tap in range(1, taps.shape[0]):
        total += inputs[:, tap : tap + width] * taps[tap]
    inactive = torch.arange(width) >= lanes.counts.unsqueeze(1)
    return silu(total).to(x.dtype).masked_fill_(inactive.unsqueeze(-1), 0)


def shift_history(x: Tensor, history: Tensor, lanes: LaneRows, boundary: Boundary | None = None) -> None:
    """See the card."""
    inputs = _inputs(x, history, lanes)
    if boundary is not None:
        stops = (boundary.counts >= 1) & (boundary.counts <= lanes.counts)
        _write(history, boundary.slots, inputs, boundary.counts, stops)
    _write(history, lanes.slots, inputs, lanes.counts, lanes.counts > 0)


def _inputs(x: Tensor, history: Tensor, lanes: LaneRows) -> Tensor:
    """Inputs of all lanes [B, K − 1 + W, C], committed ones first."""
    fresh = (lanes.lengths == 0).view(-1, 1, 1)
    return torch.cat((history[lanes.slots].masked_fill(fresh, 0), x), dim=1)


def _write(history: Tensor, slots: Tensor, inputs: Tensor, rows: Tensor, chosen: Tensor) -> None:
    """The K − 1 inputs before row `rows` [B] into the slots of the chosen lanes."""
    window = rows[chosen].unsqueeze(1) + torch.arange(history.shape[1])
    history[slots[chosen]] = inputs[chosen].gather(1, window.unsqueeze(-1).expand(-1, -1, inputs.shape[2]))
