"""Reference of `short_conv` and `shift_history`: one row at a time."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from flare.ops.short_conv.lanes import Boundary, LaneRows


def short_conv(x: Tensor, weight: Tensor, history: Tensor, lanes: LaneRows) -> Tensor:
    """See the card."""
    taps, y = weight.shape[1], torch.zeros_like(x)
    for lane, count in enumerate(lanes.counts.tolist()):
        for row in range(count):
            window = _inputs(x, history, lanes, lane)[row : row + taps].double()
            y[lane, row] = silu((window * weight.double().T).sum(0)).to(x.dtype)
    return y


def shift_history(x: Tensor, history: Tensor, lanes: LaneRows, boundary: Boundary | None = None) -> None:
    """See the card."""
    kept = history.shape[1]
    for lane, count in enumerate(lanes.counts.tolist()):
        inputs = _inputs(x, history, lanes, lane)
        if boundary is not None and 1 <= (stop := int(boundary.counts[lane])) <= count:
            history[boundary.slots[lane]] = inputs[stop : stop + kept]
        if count > 0:
            history[lanes.slots[lane]] = inputs[count : count + kept]


def _inputs(x: Tensor, history: Tensor, lanes: LaneRows, lane: int) -> Tensor:
    """A lane's inputs [K − 1 + W, C], committed ones first."""
    past = history[lanes.slots[lane]]
    return torch.cat((past if lanes.lengths[lane] else torch.zeros_like(past), x[lane]))
