"""The target law on a CPU: each row alone, V-wide work only where the row's policy needs it.

Contract: the card in `law.py`. Rows are worked on one by one as contiguous arrays, so no reduction can depend on the
lane, the batch or the width. Neither top-k nor top-p sorts a whole row.
"""

import numpy as np
from torch import Tensor

from flare.ops.sampling.tables import LawRows, PolicyTable

_GROUPS = 512  # group maxima examined before a k-th value is sought; about the square root of a large vocabulary
_BINS, _BINS_PER_NAT = 2048, 51  # top-p bins over the 40 nats below the peak; the last one takes the rest


def target_law(logits: Tensor, rows: LawRows, policy: PolicyTable, *, out: Tensor) -> Tensor:
    """Fill `out` [B, W, V + 1] with the law of every row; see the card."""
    out_BWV = out.numpy()
    out_BWV[...] = 0
    lengths = np.where(rows.live.numpy(), rows.length.numpy(), -1).tolist()
    for b, length in enumerate(lengths):
        out_BWV[b, length + 1 :, 0] = 1
        if length >= 0:
            _lane_law(logits.numpy()[b, : length + 1], _Lane(rows, policy, b), out_BWV[b, : length + 1, :-1])
    return out


class _Lane:
    """One lane's policy as host numbers and its token rows; counts move on as rows are visited in order."""

    def __init__(self, rows: LawRows, policy: PolicyTable, b: int) -> None:
        slot = int(rows.slots.numpy()[b])
        self.temperature, self.top_p, self.min_p = (
            float(t.numpy()[slot]) for t in (policy.temperature, policy.top_p, policy.min_p)
        )
        self.top_k = int(policy.top_k.numpy()[slot])
        self.suppressed_rows = int(policy.min_tokens.numpy()[slot]) - int(policy.generated.numpy()[slot])
        stops = policy.stops.numpy()[slot]
        self.stops = stops[stops >= 0]
        self.tokens = rows.tokens.numpy()[b].tolist()
        self.masks = rows.masks.numpy()[b] if rows.masked.numpy()[b] else None
        self.penalties = None if policy.plain.numpy()[slot] else _Penalties(policy, slot)


class _Penalties:
    """Bias and penalties of one lane; `count` adds the drafts row after row."""

    def __init__(self, policy: PolicyTable, slot: int) -> None:
        self.repetition, self.presence, self.frequency = (
            float(t.numpy()[slot]) for t in (policy.repetition, policy.presence, policy.frequency)
        )
        self.bias = policy.bias.numpy()[slot]
        self.generated = policy.generated_counts.numpy()[slot].copy()
        self.seen = (policy.prompt_counts.numpy()[slot] > 0) | (self.generated > 0)

    def count(self, token: int) -> None:
        """One more draft before the rows to come; the marker counts nothing."""
        if token < self.generated.size:
            self.generated[token] += 1
            self.seen[token] = True

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Logits [V] -> new float64 logits."""
        x = x + self.bias.astype(np.float64)
        ids = np.flatnonzero(self.seen)
        values, generated = x[ids], self.generated[ids]
        values = np.where(values > 0, values / self.repetition, values * self.repetition)
        x[ids] = values - self.frequency * generated - self.presence * (generated > 0)
        return x


def _lane_law(logits_WV: np.ndarray, lane: _Lane, out_WV: np.ndarray) -> None:
    for w, row in enumerate(logits_WV):
        x = np.ascontiguousarray(row)
        if lane.penalties is not None:
            if w:
                lane.penalties.count(lane.tokens[w])
            x = lane.penalties.apply(x)
        if w < lane.suppressed_rows and lane.stops.size:
            x = x.copy()
            x[lane.stops] = -np.inf
        if lane.masks is not None:
            bits = np.ascontiguousarray(lane.masks[w]).view(np.uint8)
            x = np.where(np.unpackbits(bits, count=x.size, bitorder="little").view(bool), x, -np.inf)
        if lane.temperature == 0:
            out_WV[w, x.argmax()] = 1
        else:
            _write_filtered(x, lane, out_WV[w])


def _write_filtered(x: np.ndarray, lane: _Lane, out_V: np.ndarray) -> None:
    """Temperature, top-k, top-p and min-p of adjusted logits [V] into a zeroed row [V].

    Top-k precedes the division by the temperature, which keeps the order, to leave k numbers to divide.
    """
    ids = slice(None)
    if 0 < lane.top_k < x.size:
        ids = _largest(x, lane.top_k)
        x = x[ids]
    peak = x.max() if x.size else -np.inf
    if not np.isfinite(peak):  # nothing is allowed, or the logits are broken, which the round reports
        out_V[0] = 1
        return
    scaled = (x.astype(np.float64) - peak) / lane.temperature
    weights = np.exp(scaled)
    if lane.top_p < 1:
        weights[x < _nucleus_floor(x, scaled, weights, lane.top_p * weights.sum())] = 0
    if lane.min_p > 0:
        weights[weights < lane.min_p] = 0
    out_V[ids] = weights / weights.sum()


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    """Ascending ids of the finite values that fewer than k others exceed, for 1 <= k < len(values).

    The k-th largest of disjoint groups' maxima bounds the k-th largest value from below, and few values pass it.
    """
    groups, candidates = max(_GROUPS, 4 * k), None
    if 4 * groups <= values.size:
        whole = values.size - values.size % groups
        maxima = np.concatenate([values[:whole].reshape(-1, groups).max(0), values[whole:]])
        candidates = np.flatnonzero(values >= _kth(maxima, k))
        values = values[candidates]
    kept = np.flatnonzero((values >= _kth(values, k)) & (values > -np.inf))
    return kept if candidates is None else candidates[kept]


def _kth(values: np.ndarray, k: int) -> np.floating:
    return np.partition(values, values.size - k)[values.size - k]


def _nucleus_floor(x: np.ndarray, scaled: np.ndarray, weights: np.ndarray, needed: float) -> float:
    """The smallest logit whose strictly greater ones weigh less than `needed`, top_p times the total weight.

    Logits are binned by value; only the bin in which the mass from the top reaches `needed` is sorted. Logits are
    compared, not scaled ones: subtracting the peak can make distinct small logits equal.

    Args:
        x: logits that may survive.
        scaled: the same, less the peak, over the temperature; float64.
        weights: exp(scaled).
    """
    bins = np.minimum(scaled * -_BINS_PER_NAT, _BINS - 1).astype(np.int64)
    mass = np.bincount(bins, weights).cumsum()
    crossing = min(int(mass.searchsorted(needed)), mass.size - 1)  # rounding can leave the total just short
    members = np.flatnonzero(bins == crossing)
    members = members[np.argsort(-x[members])]
    above = mass[crossing - 1] if crossing else 0.0
    reached = int((above + weights[members].cumsum()).searchsorted(needed))
    return float(x[members[min(reached, members.size - 1)]])
