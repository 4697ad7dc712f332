"""Card of `rms_norm` and `add_rms_norm`.

axes     R rows, H hidden
inputs   x [R, H], weight [H]; `add_rms_norm` also a residual [R, H] that it changes in place to residual + x
outputs  y [R, H] = x / sqrt(mean(x²) + eps) · weight, of the new residual in `add_rms_norm`

bfloat16 is widened to float32 inside and rounded once at the end. Rows do not touch each other.

Source: Zhang and Sennrich 2019, equation 4.
"""
