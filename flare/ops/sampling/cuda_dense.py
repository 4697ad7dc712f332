"""Rows of the law that keep many tokens: top-k and top-p as thresholds found through a histogram.

Four launches that return at once for finished rows: a histogram of logits by value (counts and masses, whose integer
sums do not depend on their order), the exact thresholds in the bins where they fall, the weights, their division by
the sum. Here adjusted logits are float32: order is kept, and logits that one float32 cannot tell apart are equal.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sampling.cuda_rows import INFINITY, Output, RowInputs, adjusted, ordered, place_of

DONE, SOFTMAX, THRESHOLDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what a row still needs

_TILE = 4096
_BINS = 2048
_BINS_PER_NAT = tl.constexpr(51.0)  # over the 40 nats below the peak; the last bin takes the rest
_UNIT = tl.constexpr(2.0**44)  # masses count in this fraction of the peak's; 2^18 such peaks fit into an int64


class Marks(NamedTuple):
    """One entry per row: what it needs, its largest logit, its histogram (cleared), thresholds, sums of its tiles."""

    state: Tensor
    peak: Tensor
    counts: Tensor
    masses: Tensor
    floors: Tensor


def new_marks(rows: int, device: torch.device) -> Marks:
    """Uninitialised marks; the selection writes the first four."""
    return Marks(
        state=torch.empty(rows, dtype=torch.int32, device=device),
        peak=torch.empty(rows, dtype=torch.float32, device=device),
        counts=torch.empty(rows, _BINS, dtype=torch.int32, device=device),
        masses=torch.empty(rows, _BINS, dtype=torch.int64, device=device),
        floors=torch.empty(rows, dtype=torch.int64, device=device),
    )


def finish_dense_rows(rows: RowInputs, out: Output, marks: Marks) -> None:
    """Write the law of every row that is not `DONE`."""
    count, tiles = len(marks.state), triton.cdiv(rows.vocab + 1, _TILE)
    sums = torch.empty(count, tiles, dtype=torch.float64, device=marks.state.device)
    parts = (tiles, count)
    _histogram[parts](rows, marks, TILE=_TILE, BINS=_BINS, num_warps=8)
    _thresholds[(count,)](rows, out, marks, TILE=_TILE, BINS=_BINS, num_warps=16)
    _weights[parts](rows, out, marks, sums, TILE=_TILE, num_warps=8)
    _normalise[parts](rows, out, marks, sums, tiles, TILE=_TILE, TILES=triton.next_power_of_2(tiles), num_warps=8)


@triton.jit
def _histogram(rows, marks: Marks, TILE: tl.constexpr, BINS: tl.constexpr):
    """Count and weigh one tile of a row by value."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(marks.state + row) != THRESHOLDS:
        return
    b, w, _ = place_of(row, rows)
    ids = tile * TILE + tl.arange(0, TILE)
    scaled = _scaled(adjusted(ids, b, w, rows).to(tl.float32), row, b, rows, marks)
    place, mass = row * BINS + _bin(scaled, BINS), _mass(scaled)
    tl.atomic_add(marks.counts + place, 1, ids < rows.vocab, sem="relaxed")
    tl.atomic_add(marks.masses + place, mass, mass > 0, sem="relaxed")


@triton.jit
def _thresholds(rows, out: Output, marks: Marks, TILE: tl.constexpr, BINS: tl.constexpr):
    """Order of the smallest logit that top-k, then top-p keep; members of a bin are listed in the row's own output."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(marks.state + row) == DONE:
        return
    b, w, _ = place_of(row, rows)
    slot, listed = tl.load(rows.slots + b), out.law + b * out.lane + w * out.row
    bins = tl.arange(0, BINS)
    floor = ordered(tl.full((), -INFINITY, tl.float32))
    if tl.load(marks.state + row) == THRESHOLDS:
        masses = tl.load(marks.masses + row * BINS + bins)
        top_k, top_p = tl.load(rows.top_k + slot), tl.load(rows.top_p + slot).to(tl.float64)
        if (top_k > 0) & (top_k < rows.vocab):
            counts = tl.load(marks.counts + row * BINS + bins).to(tl.int64)
            crossing, needed = _crossing(counts, bins, top_k)
            n = _list_bin(listed, crossing, floor, row, b, w, rows, marks, TILE, BINS)
            floor = _floor(listed, n, needed, floor, row, b, rows, marks, False, TILE)
            # What is left of the crossing bin, and nothing below it, enters top-p's total.
            left = _measure(listed, n, floor, row, b, rows, marks, True, TILE)
            masses = tl.where(bins < crossing, masses, tl.where(bins == crossing, left, 0))
            tl.debug_barrier()
        if top_p < 1:
            total = tl.sum(masses, 0).to(tl.float64)
            crossing, needed = _crossing(masses, bins, tl.maximum((top_p * total).to(tl.int64), 1))
            n = _list_bin(listed, crossing, floor, row, b, w, rows, marks, TILE, BINS)
            floor = _floor(listed, n, needed, floor, row, b, rows, marks, True, TILE)
    tl.store(marks.floors + row, floor)


@triton.jit
def _weights(rows, out: Output, marks: Marks, sums, TILE: tl.constexpr):
    """Weights of one tile of a row, relative to the peak's, and their sum."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(marks.state + row) == DONE:
        return
    b, w, _ = place_of(row, rows)
    ids = tile * TILE + tl.arange(0, TILE)
    x = adjusted(ids, b, w, rows).to(tl.float32)
    weight = tl.exp(_scaled(x, row, b, rows, marks))
    min_p = tl.load(rows.min_p + tl.load(rows.slots + b)).to(tl.float64)
    weight = tl.where((ordered(x) >= tl.load(marks.floors + row)) & (weight >= min_p), weight, 0.0)
    tl.store(out.law + b * out.lane + w * out.row + ids, weight.to(tl.float32), ids <= rows.vocab)
    tl.store(sums + row * tl.num_programs(0) + tile, tl.sum(weight, 0))


@triton.jit
def _normalise(rows, out: Output, marks: Marks, sums, tiles, TILE: tl.constexpr, TILES: tl.constexpr):
    """Divide one tile of a row by the sum of all its tiles."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(marks.state + row) == DONE:
        return
    b, w, _ = place_of(row, rows)
    part = tl.arange(0, TILES)
    total = tl.sum(tl.load(sums + row * tiles + part, part < tiles, 0.0), 0)
    ids = tile * TILE + tl.arange(0, TILE)
    law = out.law + b * out.lane + w * out.row + ids
    tl.store(law, (tl.load(law, ids < rows.vocab, 0.0).to(tl.float64) / total).to(tl.float32), ids < rows.vocab)


@triton.jit
def _scaled(x, row, b, rows, marks: Marks):
    """Nats below the peak after the temperature, float64, none above 0."""
    temperature = tl.load(rows.temperature + tl.load(rows.slots + b)).to(tl.float64)
    return (x.to(tl.float64) - tl.load(marks.peak + row).to(tl.float64)) / temperature


@triton.jit
def _bin(scaled, BINS: tl.constexpr):
    return tl.minimum(scaled * -_BINS_PER_NAT, BINS - 1.0).to(tl.int32)


@triton.jit
def _mass(scaled):
    return (tl.exp(scaled) * _UNIT).to(tl.int64)


@triton.jit
def _crossing(measures, bins, needed):
    """The bin in which the sum from the top reaches what is needed, and how much of it is needed there."""
    crossing = tl.sum((tl.cumsum(measures, 0) < needed).to(tl.int32), 0)
    return crossing, needed - tl.sum(tl.where(bins < crossing, measures, 0), 0)


@triton.jit
def _list_bin(listed, chosen, floor, row, b, w, rows, marks: Marks, TILE: tl.constexpr, BINS: tl.constexpr):
    """List the logits of one bin that reach the floor; return how many they are."""
    n = row * 0
    for start in range(0, rows.vocab, TILE):
        ids = start + tl.arange(0, TILE)
        x = adjusted(ids, b, w, rows).to(tl.float32)
        in_bin = _bin(_scaled(x, row, b, rows, marks), BINS) == chosen
        member = in_bin & (ids < rows.vocab) & (ordered(x) >= floor)
        tl.store(listed + n + tl.cumsum(member.to(tl.int32), 0) - 1, x, member)
        n += tl.sum(member.to(tl.int32), 0)
    tl.debug_barrier()
    return n


@triton.jit
def _measure(listed, n, floor, row, b, rows, marks: Marks, by_mass: tl.constexpr, TILE: tl.constexpr):
    """Count, or mass, of the listed logits that reach a floor."""
    total = n * 0
    for start in range(0, n, TILE):
        place = start + tl.arange(0, TILE)
        x = tl.load(listed + place, place < n, -INFINITY)
        reached = (ordered(x) >= floor) & (place < n)
        if by_mass:
            total += tl.sum(tl.where(reached, _mass(_scaled(x, row, b, rows, marks)), 0), 0)
        else:
            total += tl.sum(reached.to(tl.int64), 0)
    return total


@triton.jit
def _floor(listed, n, needed, low, row, b, rows, marks: Marks, by_mass: tl.constexpr, TILE: tl.constexpr):
    """Order of the largest logit from which on the listed ones measure enough; `low` where all together do not."""
    high = ordered(tl.load(marks.peak + row))
    while low < high:
        middle = (low + high + 1) >> 1
        enough = _measure(listed, n, middle, row, b, rows, marks, by_mass, TILE) >= needed
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return low
