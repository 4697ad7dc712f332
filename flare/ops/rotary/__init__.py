"""Card of `rotary_table`, `rotary_rows` and `apply_rotary`: rotary positions, half-split pairs.

axes     P positions, R rows, Hq query heads, Hk key heads, D head width (even)
inputs   `rotary_table` (host, at load): positions P, D, base, dtype
         `rotary_rows` (once a round): table, positions [R] int64 below P
         `apply_rotary` (each layer): q [R, Hq, D], k [R, Hk, D], any strides, and the two row tensors
outputs  table, opaque, [P, 2, D] (float32 on CUDA); cosines and signed sines of the rows, opaque, for operators only;
         rotated q and k, new tensors

The pair (i, i + D/2) of a head at position p turns by p · base^(−2i/D). Angles are float32, as in the checkpoints'
training code, whatever the dtype of the table.

Source: Su et al. 2021, equation 15; pairing as in GPT-NeoX.
"""
