"""Card of `rms_norm`, `add_rms_norm` and `zero_centred_norm`.

axes     R rows, H hidden, G groups of H / G neighbours
inputs   x [R, H], weight [H]; `add_rms_norm` also a residual [R, H] that it changes in place to residual + x
outputs  y [R, H] = x / sqrt(mean(x²) + eps) · weight, of the new residual in `add_rms_norm`;
         `zero_centred_norm` multiplies by 1 + weight instead and takes the mean over each of its G groups alone

bfloat16 is widened to float32 inside and rounded once at the end. Rows do not touch each other.

Source: Zhang and Sennrich 2019, equation 4; the zero-centred weight is that of Gemma and Qwen4-exp checkpoints, whose
stored norms start at 0.
"""
