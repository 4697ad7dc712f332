"""Card of `report_logprobs`: log-probabilities of emitted tokens and of the likeliest alternatives.

axes     B lanes, W rows per lane, V vocabulary, S request slots, n alternatives prepared
inputs   logits [B, W, V] the target's own, before bias, penalties, temperature and filters
         tokens [B, W] int64 emitted tokens; kept [B, W] bool
         wanted [B] int64: -1 nothing, 0 the token alone, k > 0 also the k likeliest
         slots [B] int64: the row of each lane in the outputs
outputs  values [S + 1, W', 1 + n] float32 and ids [S + 1, W', 1 + n] int64, W' >= W: first the emitted token, then
         the likeliest in falling order; entries nobody asked for keep what they held

value = logit − logsumexp(logits), in float32 (float64 for float64 logits)
"""

from flare.ops.logprobs.cpu import report_logprobs

__all__ = ["report_logprobs"]
