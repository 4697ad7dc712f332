"""Card of `ngram_rows`, `ngram_lookup`, `gate_streams` and `dilated_conv`: hashed n-gram embeddings.

axes     B lanes, W rows per lane, R = B · W, n orders 2 … N, T heads (orders × heads per order), E head width,
         S streams, H hidden, D = S · H, K taps, d dilation
inputs   `ngram_rows`: window [B, N − 1 + W] int64, the N − 1 ids before the rows first, and an `NgramHash`
         `ngram_lookup`: an `NgramTable`, rows [R, T] int64, the dtype of the result
         `gate_streams`: key [R, D] and query [R, D], both normed, value [R, H]
         `dilated_conv`: gated [B, W, D], window [B, (K − 1) · d + W, D] of normed inputs, weight [D, K], d
outputs  ngram_rows   [R, T]: (m_n mod size) + offset, m_n = xor over lags i < n of id[p − i] · multiplier[i]; a lag
                      reads as EOS from the first EOS id before the row on (the row's own EOS cuts nothing)
         ngram_lookup [R, T · E]: table rows side by side in head order, widened, scaled, rounded once
         gate_streams [R, D] = σ(w_s) · value, w_s = sign(c) · sqrt(max(|c|, 1e-6)), c = key_s · query_s / sqrt(H); the
                      gate is rounded to the model's dtype before it multiplies
         dilated_conv [B, W, D] = gated + silu(z), z[t] = Σ_k weight[:, k] · window[t + k · d]

float32 inside (float64 for float64), one rounding at the end except where said. int64 products wrap nowhere for ids
below the vocabulary size the multipliers were derived for.

Source: Qwen4-exp's PLE (transformers 5.24), with b12x's rounding points.
"""

from flare.ops.ngram.tables import NgramHash, NgramTable

__all__ = ["NgramHash", "NgramTable"]
