"""The target law on CUDA: a scan of all rows by tiles, then the few likeliest tokens of each row in one program.

Contract: the card in `law.py`. Five launches of fixed grids. Rows that keep few tokens (temperature 0, or top-k up to
128) are done after two; the others are marked and finished by `cuda_dense.py`, whose launches return at once elsewhere.
Nothing is read on the host. Sums run in a fixed order or are of integers, so a row has the same bits in any lane, batch
and width.

The scan clears the output and keeps the maximum of each group of neighbouring logits. The k-th largest of these bounds
the k-th largest logit from below: only groups that reach it are read again, and few logits in them do. Survivors are
then found by the card's own words: each candidate is compared with all others in float64.
"""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.ops.sampling.cuda_dense import finish_dense_rows
from flare.ops.sampling.cuda_masses import (
    BINS,
    DONE,
    MOST_LOGITS,
    SLACK_NATS,
    THRESHOLDS,
    TOTAL,
    Marks,
    new_marks,
    scaled_by,
)
from flare.ops.sampling.cuda_rows import INFINITY, Output, adjusted, ordered, place_of, row_inputs, unordered
from flare.ops.sampling.tables import LawRows, PolicyTable

_TILE = 2048
_GROUPS = 2048  # most group maxima of a row
_CHUNK = 4096  # logits read again at a time
_CANDIDATES = 256  # a row where more reach the bound goes the dense way
_MOST_K = tl.constexpr(128)
_SCAN_WARPS, _SELECT_WARPS = 8, 8


class Candidates(NamedTuple):
    """Scratch of the selection, one entry per row: group maxima [G], groups picked [G], candidates [`_CANDIDATES`]."""

    maxima: Tensor
    picked: Tensor
    logits: Tensor
    weights: Tensor
    ids: Tensor
    groups: int


def target_law(logits: Tensor, rows: LawRows, policy: PolicyTable, *, out: Tensor) -> Tensor:
    """Fill `out` [B, W, V + 1] float32 with the law of every row; see the card."""
    lanes, width, vocab = logits.shape
    assert vocab <= MOST_LOGITS, "masses of a row that keeps many tokens are summed as integers"
    group = min(max(triton.next_power_of_2(triton.cdiv(vocab, _GROUPS)), 16), _TILE)
    tiles, count = triton.cdiv(vocab + 1, _TILE), lanes * width
    inputs, output = row_inputs(logits, rows, policy), Output(out, out.stride(0), out.stride(1))
    found, marks = _new_candidates(count, tiles * (_TILE // group), logits.device), new_marks(count, logits.device)
    _scan[(tiles, count)](inputs, output, found, GROUP=group, PER_TILE=_TILE // group, num_warps=_SCAN_WARPS)
    _select[(count,)](
        inputs, output, found, marks, GROUP=group, GROUPS=triton.next_power_of_2(found.groups),
        LIST=max(_CHUNK // group, 1), CANDIDATES=_CANDIDATES, BINS=BINS, num_warps=_SELECT_WARPS,
    )  # fmt: skip
    finish_dense_rows(inputs, output, marks)
    return out


def _new_candidates(rows: int, groups: int, device: torch.device) -> Candidates:
    def scratch(columns: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(rows, columns, dtype=dtype, device=device)

    return Candidates(
        maxima=scratch(groups, torch.float32),
        picked=scratch(groups, torch.int32),
        logits=scratch(_CANDIDATES, torch.float64),
        weights=scratch(_CANDIDATES, torch.float64),
        ids=scratch(_CANDIDATES, torch.int32),
        groups=groups,
    )


@triton.jit
def _scan(rows, out: Output, found: Candidates, GROUP: tl.constexpr, PER_TILE: tl.constexpr):
    """Clear one tile of a row of the output, and keep the largest adjusted logit of each group in it."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, w, consulted = place_of(row, rows)
    group = tile * PER_TILE + tl.arange(0, PER_TILE)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    law = tl.where((ids == 0) & (consulted == 0), 1.0, 0.0)
    tl.store(out.law + b * out.lane + w * out.row + ids, law, ids <= rows.vocab)
    if consulted:
        x = adjusted(ids, b, w, rows).to(tl.float32)
        tl.store(found.maxima + row * found.groups + group, tl.max(x, 1))


@triton.jit
def _select(
    rows, out: Output, found: Candidates, marks: Marks,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, LIST: tl.constexpr, CANDIDATES: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Finish one row that keeps few tokens; mark any other for the dense launches."""
    row = tl.program_id(0).to(tl.int64)
    b, w, consulted = place_of(row, rows)
    tl.store(marks.state + row, DONE)
    if consulted == 0:
        return
    law = out.law + b * out.lane + w * out.row
    slot = tl.load(rows.slots + b)
    temperature, top_k = tl.load(rows.temperature + slot).to(tl.float64), tl.load(rows.top_k + slot)
    group = tl.arange(0, GROUPS)
    best = tl.load(found.maxima + row * found.groups + group, group < found.groups, -INFINITY)
    peak = tl.max(best, 0)
    if (peak == -INFINITY) | ((peak == INFINITY) & (temperature > 0)):
        tl.store(law, 1.0)  # nothing is allowed, or the logits are broken, which the round reports
        return
    limited = (top_k > 0) & (top_k < rows.vocab)
    bound = ordered(tl.where(temperature == 0, peak, -INFINITY))
    if limited & (temperature > 0) & (top_k <= found.groups):
        bound = _kth_largest(best, top_k, peak)
    n = row * 0
    if (temperature == 0) | (limited & (top_k <= _MOST_K)):
        n = _gather_candidates(row, b, w, best, bound, rows, found, GROUP, GROUPS, LIST, CANDIDATES)
    if temperature == 0:
        place = tl.arange(0, CANDIDATES)
        x = tl.load(found.logits + row * CANDIDATES + place, place < n, -INFINITY)
        token = tl.load(found.ids + row * CANDIDATES + place, place < n, 0)
        tl.store(law + tl.min(tl.where(x == tl.max(x, 0), token, rows.vocab), 0), 1.0)
    elif (n > 0) & (n <= CANDIDATES):
        _write_survivors(row, n, slot, rows, found, law, CANDIDATES)
    else:
        _mark(row, slot, best, peak, limited, bound, rows, marks, BINS)


@triton.jit
def _mark(row, slot, best, peak, limited, bound, rows, marks: Marks, BINS: tl.constexpr):
    """Leave a row to the dense launches, and bound its thresholds from below by what the group maxima tell.

    Logits under a bound of ln(share × mass / V) nats weigh less than that share of the mass, of which the maxima's is
    a part. A half of what top-p may drop leaves room for rounding.
    """
    temperature, top_p = tl.load(rows.temperature + slot), tl.load(rows.top_p + slot)
    min_p, nats = tl.load(rows.min_p + slot).to(tl.float64), scaled_by(unordered(bound), peak, temperature)
    if not limited:
        if top_p < 1:
            mass = tl.sum(tl.exp(scaled_by(best, peak, temperature)), 0)
            nats = tl.log(0.5 * (1.0 - top_p.to(tl.float64)) * mass / rows.vocab)
        if min_p > 0:
            nats = tl.maximum(nats, tl.log(min_p) - SLACK_NATS)
    bins = row * BINS + tl.arange(0, BINS)
    if limited | (top_p < 1):
        tl.store(marks.masses + bins, tl.zeros((BINS,), tl.int64))
    if limited:
        tl.store(marks.counts + bins, tl.zeros((BINS,), tl.int32))
    tl.store(marks.state + row, tl.where(limited | (top_p < 1), THRESHOLDS, TOTAL))
    tl.store(marks.peak + row, peak)
    tl.store(marks.bound + row, nats)
    tl.store(marks.total + row, 0)
    tl.store(marks.floor + row, ordered(peak * 0 - INFINITY))
    tl.store(marks.arrived + row, 0)
    tl.store(marks.listed + row, 0)
    tl.store(marks.lowest + row, 0x7FFFFFFF)
    tl.store(marks.highest + row, -0x7FFFFFFF)


@triton.jit
def _kth_largest(values, k, peak):
    """Order of the k-th largest of some float32 values up to `peak`; of −inf where they are fewer than k.

    Halves the range until it holds one value, or until just k values reach its lower end: the least of them it is.
    """
    COLUMNS: tl.constexpr = 128
    order, lowest = ordered(values), ordered(peak * 0 - INFINITY)
    # The maxima of so many columns are so many values that reach the least of them.
    columns = tl.max(tl.reshape(order, (values.shape[0] // COLUMNS, COLUMNS)), 0)
    low, high = tl.where(k <= COLUMNS, tl.min(columns, 0), lowest), ordered(peak).to(tl.int64)
    reached = tl.full((), 0, tl.int32)
    while (low < high) & (reached != k):
        middle = ((low + high + 1) >> 1).to(tl.int32)
        reaching = tl.sum((order >= middle).to(tl.int32), 0)
        enough = reaching >= k
        reached = tl.where(enough, reaching, reached)
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle.to(tl.int64) - 1)
    return tl.where(low == lowest, low, tl.min(tl.where(order >= low, order, 0x7FFFFFFF), 0))


@triton.jit
def _gather_candidates(
    row, b, w, best, bound, rows, found: Candidates,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, LIST: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Store the finite logits that reach the bound, by ascending id, as far as they fit; return how many there are."""
    reaching = (ordered(best) >= bound) & (best > -INFINITY)
    rank = tl.cumsum(reaching.to(tl.int32), 0) - 1
    tl.store(found.picked + row * found.groups + rank, tl.arange(0, GROUPS), reaching)
    picked = tl.sum(reaching.to(tl.int32), 0)
    tl.debug_barrier()
    n, start = row * 0, picked * 0
    while (start < picked) & (n <= CANDIDATES):
        each = start + tl.arange(0, LIST)
        group = tl.load(found.picked + row * found.groups + each, each < picked, found.groups)
        ids = tl.reshape(group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (LIST * GROUP,))
        x = adjusted(ids, b, w, rows)
        kept = (ordered(x.to(tl.float32)) >= bound) & (x > -INFINITY)
        place = n + tl.cumsum(kept.to(tl.int32), 0) - 1
        fits = kept & (place < CANDIDATES)
        tl.store(found.logits + row * CANDIDATES + place, x, fits)
        tl.store(found.ids + row * CANDIDATES + place, ids, fits)
        n += tl.sum(kept.to(tl.int32), 0)
        start += LIST
    tl.debug_barrier()
    return n


@triton.jit
def _write_survivors(row, n, slot, rows, found: Candidates, law, CANDIDATES: tl.constexpr):
    """Top-k, top-p and min-p of n candidates that hold every survivor, written to a cleared row."""
    STEP: tl.constexpr = 16
    values, weights = found.logits + row * CANDIDATES, found.weights + row * CANDIDATES
    place = tl.arange(0, CANDIDATES)
    x = tl.load(values + place, place < n, -INFINITY)
    weight = tl.exp((x - tl.max(x, 0)) / tl.load(rows.temperature + slot).to(tl.float64))
    tl.store(weights + place, weight)
    tl.debug_barrier()
    rank, above = tl.zeros((CANDIDATES,), tl.int32), tl.zeros((CANDIDATES,), tl.float64)
    for start in range(0, n, STEP):
        other = start + tl.arange(0, STEP)
        greater = tl.load(values + other, other < n, -INFINITY)[None, :] > x[:, None]
        rank += tl.sum(greater.to(tl.int32), 1)
        above += tl.sum(tl.where(greater, tl.load(weights + other)[None, :], 0.0), 1)
    kept = (place < n) & (rank < tl.load(rows.top_k + slot))
    top_p = tl.load(rows.top_p + slot).to(tl.float64)
    if top_p < 1:
        # What is strictly greater than a survivor of top-k survived it too.
        needed = top_p * tl.sum(tl.where(kept, weight, 0.0), 0)
        kept = kept & ((above < needed) | (rank == 0))
    weight = tl.where(kept & (weight >= tl.load(rows.min_p + slot).to(tl.float64)), weight, 0.0)
    token = tl.load(found.ids + row * CANDIDATES + place, place < n, 0)
    tl.store(law + token, (weight / tl.sum(weight, 0)).to(tl.float32), weight > 0)
