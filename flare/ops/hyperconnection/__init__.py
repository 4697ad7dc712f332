"""Card of `scaled_silu`, `mix_streams` and `inject_streams`: the arithmetic between a hyperconnection's linears.

axes     R rows, S streams, H hidden, D = S · H (stream-major), K low rank
inputs   `scaled_silu`: x [R, K], divisor
         `mix_streams`: normed [R, D], gate [R, D] before its sigmoid, streams
         `inject_streams`: residual [R, D], y [R, H], injection [R, S] before its sigmoid
outputs  scaled_silu    = silu(x / divisor): the division is inside
         mix_streams    [R, H]: mean over s of σ(gate[s]) · normed[s]
         inject_streams [R, D]: residual[s] + 2 σ(injection[s] / S) · y, which adds y unchanged where the logit is 0

All in float32 (float64 for float64), one rounding at the end. Rows do not touch each other.

Source: the gated residual of Qwen4-exp (transformers 5.24), with b12x's rounding points.
"""
