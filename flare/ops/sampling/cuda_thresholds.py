"""Exact thresholds of top-k and top-p in one row: the bins in which they fall, then the logits listed from these bins.

Top-p's threshold depends on what top-k left of its bin, which the histogram bounds from both sides: all bins between
the two outcomes are listed, mostly one. min-p joins in, for what is kept must be weighed. The list's order is chance,
but whatever is taken from it is a sum of integers, a minimum or a maximum.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sampling.cuda_masses import SLACK_NATS, Marks, bin_of, is_limited, mass_of, scaled_logits
from flare.ops.sampling.cuda_rows import INFINITY, ordered


class Edges(NamedTuple):
    """What the histogram tells of a row's thresholds, [rows] each.

    Attributes:
        first: int32, all bins above this one are kept.
        last: int32, all bins below this one are dropped.
        cut: int32, the bin of top-k's threshold; BINS without top-k.
        needed: int64, how many of the largest logits of `cut` top-k keeps, equal ones aside.
        sure: int64, mass of the bins above `first`.
        survivors: int64, what top-p's total consists of: mass of the bins above `cut`; all without top-k.
    """

    first: Tensor
    last: Tensor
    cut: Tensor
    needed: Tensor
    sure: Tensor
    survivors: Tensor


def new_edges(rows: int, device: torch.device) -> Edges:
    """Uninitialised edges."""
    bins = [torch.empty(rows, dtype=torch.int32, device=device) for _ in range(3)]
    return Edges(*bins, *(torch.empty(rows, dtype=torch.int64, device=device) for _ in range(3)))


@triton.jit
def find_edges(row, slot, rows, marks: Marks, edges: Edges, BINS: tl.constexpr):
    """Edges of one row from its histogram."""
    bins = tl.arange(0, BINS)
    masses = tl.load(marks.masses + row * BINS + bins, cache_modifier=".cg")
    least = tl.sum(masses, 0) + tl.load(marks.total + row, cache_modifier=".cg")
    most, needed, cut = least, least * 0, (least * 0).to(tl.int32) + BINS
    if is_limited(slot, rows):
        counts = tl.load(marks.counts + row * BINS + bins, cache_modifier=".cg")
        top_k = tl.load(rows.top_k + slot)
        cut = tl.minimum(tl.sum((tl.cumsum(counts, 0) < top_k).to(tl.int32), 0), BINS - 1)
        needed = top_k - tl.sum(tl.where(bins < cut, counts, 0), 0)
        least = tl.sum(tl.where(bins < cut, masses, 0), 0)
        most = least + tl.sum(tl.where(bins == cut, masses, 0), 0)
    first, last = cut, cut
    top_p, min_p = tl.load(rows.top_p + slot), tl.load(rows.min_p + slot).to(tl.float64)
    if top_p < 1:
        reached = tl.cumsum(masses, 0)
        first = tl.sum((reached < _nucleus(least, top_p)).to(tl.int32), 0)
        last = tl.sum((reached < _nucleus(most, top_p)).to(tl.int32), 0)
    if min_p > 0:
        nats = tl.log(min_p)
        first = tl.minimum(first, bin_of(nats + SLACK_NATS, BINS))
        last = tl.minimum(last, bin_of(nats - SLACK_NATS, BINS))
    tl.store(edges.first + row, first)
    tl.store(edges.last + row, last)
    tl.store(edges.cut + row, cut)
    tl.store(edges.needed + row, needed)
    tl.store(edges.sure + row, tl.sum(tl.where(bins < first, masses, 0), 0))
    tl.store(edges.survivors + row, least)


@triton.jit
def settle(listed, row, b, rows, marks: Marks, edges: Edges, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """Floor of one row, and the mass of all that it keeps."""
    slot, n = tl.load(rows.slots + b), tl.load(marks.listed + row, cache_modifier=".cg")
    x, every, cut = _chunk(listed, 0, n, CHUNK), tl.full((), -1, tl.int32), tl.load(edges.cut + row)
    floor, survivors = ordered(tl.full((), -INFINITY, tl.float32)), tl.load(edges.survivors + row)
    if is_limited(slot, rows):
        needed = tl.load(edges.needed + row)
        floor = _floor(x, listed, n, needed, floor, cut, row, b, rows, marks, False, BINS, CHUNK)
        left = _measures(x, cut, row, b, rows, marks, True, BINS)
        survivors += _reaching(floor, ordered(x), left, listed, n, cut, row, b, rows, marks, True, BINS, CHUNK)
    top_p, sure = tl.load(rows.top_p + slot), tl.load(edges.sure + row)
    if top_p < 1:
        needed = _nucleus(survivors, top_p) - sure
        floor = _floor(x, listed, n, needed, floor, every, row, b, rows, marks, True, BINS, CHUNK)
    tl.store(marks.floor + row, floor)
    min_p, total = tl.load(rows.min_p + slot).to(tl.float64), sure
    for start in range(0, n, CHUNK):
        x = _chunk(listed, start, n, CHUNK)
        scaled = scaled_logits(x, row, b, rows, marks)
        kept = (ordered(x) >= floor) & (tl.exp(scaled) >= min_p)
        total += tl.sum(tl.where(kept, mass_of(scaled), 0), 0)
    tl.store(marks.total + row, total)


@triton.jit
def _nucleus(total, top_p):
    """The mass that top-p's survivors must reach."""
    return tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _floor(
    x, listed, n, needed, low, only, row, b, rows, marks: Marks,
    by_mass: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Order of the largest logit from which on the listed ones measure enough; `low` where all together do not.

    `x` is the list's first chunk, which stays in registers, and mostly all of it.
    """
    order, measure = ordered(x), _measures(x, only, row, b, rows, marks, by_mass, BINS)
    least = tl.maximum(low, tl.load(marks.lowest + row, cache_modifier=".cg"))
    high = tl.load(marks.highest + row, cache_modifier=".cg").to(tl.int64)
    if _reaching(least, order, measure, listed, n, only, row, b, rows, marks, by_mass, BINS, CHUNK) >= needed:
        low = least
        while low < high:
            middle = ((low + high + 1) >> 1).to(tl.int32)
            reaching = _reaching(middle, order, measure, listed, n, only, row, b, rows, marks, by_mass, BINS, CHUNK)
            low = tl.where(reaching >= needed, middle, low)
            high = tl.where(reaching >= needed, high, middle.to(tl.int64) - 1)
    return low


@triton.jit
def _reaching(
    floor, order, measure, listed, n, only, row, b, rows, marks: Marks,
    by_mass: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count, or mass, of the listed logits in bin `only` that reach a floor, given the first chunk's."""
    total = tl.sum(tl.where(order >= floor, measure, 0), 0)
    for start in range(CHUNK, n, CHUNK):
        x = _chunk(listed, start, n, CHUNK)
        more = _measures(x, only, row, b, rows, marks, by_mass, BINS)
        total += tl.sum(tl.where(ordered(x) >= floor, more, 0), 0)
    return total


@triton.jit
def _measures(x, only, row, b, rows, marks: Marks, by_mass: tl.constexpr, BINS: tl.constexpr):
    """One, or its mass, for each of some listed logits; 0 outside of bin `only`, which is −1 for all bins."""
    scaled = scaled_logits(x, row, b, rows, marks)
    measure = mass_of(scaled) if by_mass else tl.full(x.shape, 1, tl.int64)
    return tl.where((only < 0) | (bin_of(scaled, BINS) == only), measure, 0)


@triton.jit
def _chunk(listed, start, n, CHUNK: tl.constexpr):
    """A part of the list; behind its end −inf, which weighs nothing and reaches no floor that others reach."""
    place = start + tl.arange(0, CHUNK)
    return tl.load(listed + place, place < n, -INFINITY, cache_modifier=".cg")
