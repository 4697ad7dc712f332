"""Card of `route`, `experts` and `add_gated`: a mixture of experts around its linears.

axes     R rows, H hidden, F expert width, E experts, k chosen
inputs   `route`: logits [R, E], k
         `experts`: x [R, H], a `Routing`, an `Experts` with gate, up [E, F, H] and down [E, H, F]
         `add_gated`: routed [R, H], shared [R, H], gate [R, 1] before its sigmoid
outputs  route     softmax over all E, its k largest (the lower id first on a tie) divided by their sum
         experts   [R, H] = Σ_e weight_e · down_e(silu(gate_e x) · (up_e x)), in order of rising e
         add_gated [R, H] = routed + σ(gate) · shared

All in float32 (float64 for float64), one rounding at the end; stored NVFP4 weights are widened, activations are never
quantised. Row r depends on row r of x alone, bit by bit in float32 whatever R is. On CUDA with bfloat16 that holds
whatever R is for dense weights, and for NVFP4 among 1 to 128 rows, 129 to 512, 513 to 1024, 1025 to 2048 and among
more: each of these classes has its own tiles. From 1025 rows on gate's and up's product is rounded to bfloat16 before
`down` reads it, as twice the work on matrix units would cost more than that rounding, 2^−9 like the result's own.

Source: the sparse mixture block of Qwen4-exp (transformers 5.24), `norm_topk_prob` true.
"""

from flare.ops.moe.weights import DenseMatrices, Experts, Routing, StackedMatrices

__all__ = ["DenseMatrices", "Experts", "Routing", "StackedMatrices"]
