"""Rows of the law that keep many tokens: top-k and top-p as thresholds found through a histogram.

Three launches over tiles that return at once for finished rows: a histogram of logits by value, which the last program
of a row reads for the bins in which the thresholds fall; a list of the logits in these bins, in which the last program
finds the thresholds; the weights over their sum. Rows without top-k and top-p need the sum alone.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

from flare.ops.sampling.cuda_masses import (
    BINS,
    DONE,
    THRESHOLDS,
    TOTAL,
    UNIT,
    Marks,
    bin_of,
    is_limited,
    mass_of,
    scaled_by,
)
from flare.ops.sampling.cuda_rows import Output, RowInputs, adjusted, ordered, place_of
from flare.ops.sampling.cuda_thresholds import Edges, find_edges, new_edges, settle

_TILE, _WARPS = 1024, 8
_PROGRAMS = 264  # of one launch, two per multiprocessor, shared by its rows; no result depends on who does which tile
_CHUNK = 1024  # listed logits that stay in registers


def finish_dense_rows(rows: RowInputs, out: Output, marks: Marks) -> None:
    """Write the law of every row that is not `DONE`."""
    count = len(marks.state)
    tiles, edges = triton.cdiv(rows.vocab + 1, _TILE), new_edges(count, marks.state.device)
    grid = (min(tiles, triton.cdiv(_PROGRAMS, count)), count)
    _histogram[grid](rows, marks, edges, TILE=_TILE, BINS=BINS, num_warps=_WARPS)
    _list[grid](rows, out, marks, edges, TILE=_TILE, BINS=BINS, CHUNK=_CHUNK, num_warps=_WARPS)
    _write[grid](rows, out, marks, TILE=_TILE, num_warps=_WARPS)


@triton.jit
def _histogram(rows, marks: Marks, edges: Edges, TILE: tl.constexpr, BINS: tl.constexpr):
    """Weigh some tiles of a row by value, count them where top-k asks; the row's last program finds its edges."""
    row = tl.program_id(1).to(tl.int64)
    state = tl.load(marks.state + row)
    if state == DONE:
        return
    b, w, _ = place_of(row, rows)
    slot, peak, bound = tl.load(rows.slots + b), tl.load(marks.peak + row), tl.load(marks.bound + row)
    temperature, min_p = tl.load(rows.temperature + slot), tl.load(rows.min_p + slot).to(tl.float64)
    limited, apart = is_limited(slot, rows), row * 0
    for start in range(tl.program_id(0) * TILE, rows.vocab, tl.num_programs(0) * TILE):
        x = adjusted(start + tl.arange(0, TILE), b, w, rows).to(tl.float32)
        scaled = scaled_by(x, peak, temperature)
        mass, bins = mass_of(scaled), bin_of(scaled, BINS)
        if state == TOTAL:
            apart += tl.sum(tl.where(tl.exp(scaled) >= min_p, mass, 0), 0)
        else:
            binned = scaled >= bound
            apart += tl.sum(tl.where(binned, 0, mass), 0)
            tl.atomic_add(marks.masses + row * BINS + bins, mass, binned & (mass > 0), sem="relaxed")
            if limited:
                tl.atomic_add(marks.counts + row * BINS + bins, 1, binned & (bins < BINS - 1), sem="relaxed")
    tl.atomic_add(marks.total + row, apart, sem="relaxed")
    if state == TOTAL:
        return
    if _arrivals(row, marks) == tl.num_programs(0):
        find_edges(row, slot, rows, marks, edges, BINS)


@triton.jit
def _list(rows, out: Output, marks: Marks, edges: Edges, TILE: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """List the logits of some tiles near an edge in the row's own output; its last program settles the row's floor."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(marks.state + row) != THRESHOLDS:
        return
    b, w, _ = place_of(row, rows)
    peak, temperature = tl.load(marks.peak + row), tl.load(rows.temperature + tl.load(rows.slots + b))
    first, last, cut = tl.load(edges.first + row), tl.load(edges.last + row), tl.load(edges.cut + row)
    listed = out.law + b * out.lane + w * out.row
    for start in range(tl.program_id(0) * TILE, rows.vocab, tl.num_programs(0) * TILE):
        ids = start + tl.arange(0, TILE)
        x = adjusted(ids, b, w, rows).to(tl.float32)
        bins, order = bin_of(scaled_by(x, peak, temperature), BINS), ordered(x)
        member = (ids < rows.vocab) & (((bins >= first) & (bins <= last)) | (bins == cut))
        count = tl.sum(member.to(tl.int32), 0)
        if count > 0:
            place = tl.atomic_add(marks.listed + row, count, sem="relaxed") + tl.cumsum(member.to(tl.int32), 0) - 1
            tl.store(listed + place, x, member)
            tl.atomic_min(marks.lowest + row, tl.min(tl.where(member, order, 0x7FFFFFFF), 0), sem="relaxed")
            tl.atomic_max(marks.highest + row, tl.max(tl.where(member, order, -0x7FFFFFFF), 0), sem="relaxed")
    if _arrivals(row, marks) == 2 * tl.num_programs(0):
        settle(listed, row, b, rows, marks, edges, BINS, CHUNK)


@triton.jit
def _write(rows, out: Output, marks: Marks, TILE: tl.constexpr):
    """Probabilities of some tiles of a row; the marker behind it weighs nothing."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(marks.state + row) == DONE:
        return
    b, w, _ = place_of(row, rows)
    slot, peak, floor = tl.load(rows.slots + b), tl.load(marks.peak + row), tl.load(marks.floor + row)
    temperature, min_p = tl.load(rows.temperature + slot), tl.load(rows.min_p + slot).to(tl.float64)
    per_weight = UNIT / tl.load(marks.total + row).to(tl.float64)
    for start in range(tl.program_id(0) * TILE, rows.vocab + 1, tl.num_programs(0) * TILE):
        ids = start + tl.arange(0, TILE)
        x = adjusted(ids, b, w, rows).to(tl.float32)
        weight = tl.exp(scaled_by(x, peak, temperature))
        kept = (ordered(x) >= floor) & (weight >= min_p)
        law = tl.where(kept, weight * per_weight, 0.0).to(tl.float32)
        tl.store(out.law + b * out.lane + w * out.row + ids, law, ids <= rows.vocab)


@triton.jit
def _arrivals(row, marks: Marks):
    """Programs that came this far with the row, this one included; the last one sees what all have written."""
    tl.debug_barrier()
    return tl.atomic_add(marks.arrived + row, 1, sem="acq_rel") + 1
