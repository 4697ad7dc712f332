"""Card of `target_law`: the distribution each row of a round is verified against, and its plain reference.

    axes     B lanes, W rows per lane, V vocabulary
    inputs   logits [B, W, V] float32 or float64; rows: LawRows; policy: PolicyTable
    output   out [B, W, V + 1] float32 or float64, overwritten; column V (the end marker) is 0

Per row: logits + bias, penalties, min_tokens, grammar mask, temperature, top-k, top-p, min-p, normalise; in this order.
Row w counts the drafts tokens[:, 1..w] on top of the tables, so it equals the law of one-token decoding after that
prefix, bit for bit in any lane, batch and width. Rules that decide ties and edges:

* repetition applies to tokens of the prompt, the output or the drafts before the row: divides positive logits,
  multiplies others. Presence and frequency count the output and the drafts, never the prompt.
* top-k keeps a token if fewer than k are strictly greater; top-p if the strictly greater survivors weigh less than
  top_p; the most likely token always survives. min-p keeps what reaches min_p times the largest probability.
* temperature 0: a point mass on the argmax after the mask, lowest id among equals.
* dead lanes, rows after `length`, and rows with no finite logit left: a point mass on id 0.

All arithmetic behind a selection is float64, where distinct float32 logits stay distinct.
"""

import torch
from torch import Tensor

from flare.ops.sampling.tables import LawRows, PolicyTable


def reference(logits: Tensor, rows: LawRows, policy: PolicyTable, *, out: Tensor) -> Tensor:
    """Fill `out` with the law of every row, one row at a time, by full sorts."""
    lanes, width, vocab = logits.shape
    out.zero_()
    for b in range(lanes):
        for w in range(width):
            if bool(rows.live[b]) and w <= int(rows.length[b]):
                out[b, w, :vocab] = _filtered(_adjusted(logits, rows, policy, (b, w)), policy, int(rows.slots[b]))
            else:
                out[b, w, 0] = 1.0
    return out


def _adjusted(logits: Tensor, rows: LawRows, policy: PolicyTable, row: tuple[int, int]) -> Tensor:
    """Logits [V] float64 of one row after bias, penalties, min_tokens and mask."""
    b, w = row
    slot, vocab = int(rows.slots[b]), logits.shape[-1]
    x = logits[b, w].double() + policy.bias[slot].double()
    generated = policy.generated_counts[slot].double()
    for token in rows.tokens[b, 1 : w + 1].tolist():
        if token < vocab:
            generated[token] += 1
    seen = (policy.prompt_counts[slot] > 0) | (generated > 0)
    repetition = policy.repetition[slot].double()
    x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
    x = x - policy.frequency[slot].double() * generated - policy.presence[slot].double() * (generated > 0)
    if int(policy.generated[slot]) + w < int(policy.min_tokens[slot]):
        for token in policy.stops[slot].tolist():
            if token >= 0:
                x[token] = -torch.inf
    if bool(rows.masked[b]):
        ids = torch.arange(vocab)
        allowed = (rows.masks[b, w, ids // 32] >> (ids % 32)) & 1
        x = torch.where(allowed == 1, x, -torch.inf)
    return x


def _filtered(x: Tensor, policy: PolicyTable, slot: int) -> Tensor:
    """Probabilities [V] float64 of adjusted logits under temperature, top-k, top-p and min-p."""
    temperature, top_p, min_p = (t[slot].double() for t in (policy.temperature, policy.top_p, policy.min_p))
    if temperature == 0 or x.max() == -torch.inf:
        return torch.nn.functional.one_hot((x == x.max()).int().argmax(), x.numel()).double()
    z = x / temperature
    ranked = z.sort(descending=True).values
    top_k = int(policy.top_k[slot])
    if 0 < top_k < z.numel():
        z = torch.where(z >= ranked[top_k - 1], z, -torch.inf)
        ranked = z.sort(descending=True).values
    p = z.softmax(0)
    if top_p < 1:
        greater = torch.searchsorted(-ranked, -z)  # how many survivors are strictly greater
        mass_before = torch.cat([torch.zeros(1).double(), ranked.softmax(0).cumsum(0)])[greater]
        p = torch.where((mass_before < top_p) | (greater == 0), p, 0.0)
        p = p / p.sum()
    p = torch.where(p >= min_p * p.max(), p, 0.0)
    return p / p.sum()
