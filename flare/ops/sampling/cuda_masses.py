"""Masses of logits in rows that keep many tokens: integers, so that their sums do not depend on any order.

Here adjusted logits are float32: order is kept, and logits that one float32 cannot tell apart are equal. A logit's nats
below the row's peak after the temperature decide its bin and its mass, both from float64.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

DONE, TOTAL, THRESHOLDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what a row still needs

BINS = 2048
_BINS_PER_NAT = tl.constexpr(51.0)  # over the 40 nats below the peak; the last bin takes the rest, which weighs nothing
UNIT = tl.constexpr(2.0**44)  # masses count in this fraction of the peak's
MOST_LOGITS = 2**19 - 1  # so many masses of peaks fit into an int64
SLACK_NATS = tl.constexpr(1e-9)  # far more than what rounding moves a logit by


class Marks(NamedTuple):
    """State of rows between launches, [rows] each, the histogram [rows, BINS]; the selection writes all but `counts`.

    Attributes:
        state: what the row still needs.
        peak: largest logit.
        bound: no threshold is lower, in nats below the peak; what is, enters no histogram.
        masses: histogram of masses by value, cleared.
        counts: the same of counts, cleared where top-k needs it; the last bin is not counted.
        total: cleared; mass outside the histogram, at the end mass of all that is kept.
        floor: order of the smallest logit that top-k and top-p keep; of −inf until it is found.
        arrived: cleared; programs that are through with the row.
        listed: cleared; logits listed in the row's output.
        lowest: order of the smallest of them; `highest` of the largest.
    """

    state: Tensor
    peak: Tensor
    bound: Tensor
    masses: Tensor
    counts: Tensor
    total: Tensor
    floor: Tensor
    arrived: Tensor
    listed: Tensor
    lowest: Tensor
    highest: Tensor


def new_marks(rows: int, device: torch.device) -> Marks:
    """Uninitialised marks."""

    def column(dtype: torch.dtype, *more: int) -> Tensor:
        return torch.empty(rows, *more, dtype=dtype, device=device)

    return Marks(
        state=column(torch.int32),
        peak=column(torch.float32),
        bound=column(torch.float64),
        masses=column(torch.int64, BINS),
        counts=column(torch.int32, BINS),
        total=column(torch.int64),
        floor=column(torch.int32),
        arrived=column(torch.int32),
        listed=column(torch.int32),
        lowest=column(torch.int32),
        highest=column(torch.int32),
    )


@triton.jit
def scaled_by(x, peak, temperature):
    """Nats below the peak after the temperature, float64, none above 0; never falls as x grows."""
    return (x.to(tl.float64) - peak.to(tl.float64)) * (1.0 / temperature.to(tl.float64))


@triton.jit
def scaled_logits(x, row, b, rows, marks: Marks):
    """`scaled_by` of a row's own peak and temperature."""
    return scaled_by(x, tl.load(marks.peak + row), tl.load(rows.temperature + tl.load(rows.slots + b)))


@triton.jit
def bin_of(scaled, BINS: tl.constexpr):
    """Bin of a logit by its nats below the peak, int32."""
    return tl.minimum(tl.maximum(scaled * -_BINS_PER_NAT, 0.0), BINS - 1.0).to(tl.int32)


@triton.jit
def mass_of(scaled):
    """Mass of a logit by its nats below the peak, int64."""
    return (tl.exp(scaled) * UNIT).to(tl.int64)


@triton.jit
def is_limited(row_slot, rows):
    """Whether top-k can drop anything."""
    top_k = tl.load(rows.top_k + row_slot)
    return (top_k > 0) & (top_k < rows.vocab)
