"""Card of `pack_linear` and `linear`: y = x · Wᵀ with a weight packed once, at load.

axes     R rows, K inputs, N outputs
inputs   weight [N, K], format "dense" (exact) or "int4" (groups of 32 on 16 levels, for small and fast CPU weights;
         CUDA refuses it)
         x [R, K] in the weight's dtype: float64 (CPU), float32 or bfloat16; any strides
outputs  y [R, N] in the same dtype, products summed in float32 or wider; `out`, where given, receives it

Row r of y depends on row r of x alone, in float32 bit by bit whatever R is: greedy decoding then gives the same
tokens at every batch and width. On CUDA that holds in every dtype among 1 to 32 rows; more are a library's product,
whose order depends on R. Packed storage stays below `flare.plan.packing.packed_linear_bytes`; on CUDA it is the weight
as it was given.
"""

from flare.ops.linear.packed import PackedLinear

__all__ = ["PackedLinear"]
