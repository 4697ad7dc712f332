"""Card of `short_conv` and `shift_history`: a depthwise causal convolution over a few rows, and its committed past.

axes     B lanes, W rows per lane, C channels, K taps
inputs   x [B, W, C]: row t of a lane is its t-th input after the committed ones; weight [C, K], oldest tap first
         history [slots + 1, K − 1, C], oldest first: the last inputs of each slot, null slot last
         lanes: slots, committed tokens N and rows of each lane (active ones for `short_conv`, published ones for
         `shift_history`); boundary: a second slot for the history after fewer rows, or None
outputs  `short_conv`: y [B, W, C] = silu(Σ_k weight[:, k] · m[t − (K − 1) + k]) where m is history then x; inactive
         rows are 0; history is read, never written
         `shift_history`: history[slot] becomes the last K − 1 of history and the published rows

A lane with N = 0 has zeros for a past. Sums in float32 (float64 for float64), one rounding at the end. Inactive and
unpublished rows, and the null slot, may hold anything.
"""

from flare.ops.short_conv.lanes import Boundary, LaneRows

__all__ = ["Boundary", "LaneRows"]
