"""Card of `route`, `experts` and `add_gated`: a mixture of experts around its linears.

axes     R rows, H hidden, F expert width, E experts, k chosen
inputs   `route`: logits [R, E], k
         `experts`: x [R, H], a `Routing`, an `Experts` with gate, up [E, F, H] and down [E, H, F]
         `add_gated`: routed [R, H], shared [R, H], gate [R, 1] before its sigmoid
outputs  route     softmax over all E, its k largest (the lower id first on a tie) divided by their sum
         experts   [R, H] = Σ_e weight_e · down_e(silu(gate_e x) · (up_e x)), in order of rising e
         add_gated [R, H] = routed + σ(gate) · shared

All in float32 (float64 for float64), one rounding at the end; stored NVFP4 weights are widened, activations are never
quantised. Row r depends on row r of x alone, bit by bit in float32 whatever R is. On CUDA that holds in bfloat16 among
1 to 32 rows, among 33 to 511 and among more, which are added in different orders.

Source: the sparse mixture block of Qwen4-exp (transformers 5.24), `norm_topk_prob` true.
"""

from flare.ops.moe.weights import DenseMatrices, Experts, Routing, StackedMatrices

__all__ = ["DenseMatrices", "Experts", "Routing", "StackedMatrices"]
