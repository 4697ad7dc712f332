"""Card of the gated delta rule: `verify`, `commit`, `prefill`, `verify_columns`, and `gated_norm` behind it.

axes     B lanes, W rows per lane, Hk key heads, Hv value heads (a multiple), Dk and Dv their widths
inputs   inputs: qkv, a, b of every row, a_log and dt_bias; lanes: slots, committed tokens N, rows of each lane
         matrix [slots + 1, Hv, Dv, Dk] float32 (float64 for float64), the null slot last
         records: one correction, key and decay per row; boundary: a second slot, or None; targets [B, W] int64 slots
formula  per row and value head h, whose key head is h // (Hv / Hk), S = matrix[slot] before the lane's first row:
         q̂ = q / √(|q|² + 10⁻⁶) · Dk^−½, k̂ = k / √(|k|² + 10⁻⁶), β = σ(b) rounded to the dtype of b
         d = exp(−exp(a_log) · softplus(a + dt_bias)), S ← d · S, e = β · (v − S k̂), S ← S + e k̂ᵀ, o = S q̂
outputs  o [B, W, Hv, Dv] in the dtype of qkv; inactive rows are 0
         `verify` fills records (e, k̂, d) of the active rows and leaves matrix alone
         `commit` replays the published rows of records: S ← d · S + e k̂ᵀ, and also writes S at the boundary
         `prefill` leaves S after the last active row in matrix[slot]
         `verify_columns` writes S after active row t to matrix[targets[:, t]]: checkpoints, of which a commit picks one
         `gated_norm`: o, z [..., Dv], weight [Dv] → round(o / √(mean(o²) + eps)) · weight, rounded if weight is narrow,
         · gate(z), rounded; gate "sigmoid" or "silu"

A lane with N = 0 starts from S = 0. Arithmetic in the matrix dtype. Inactive and unpublished rows, and the null slot,
may hold anything.

Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", equation 10.
"""

from flare.ops.gated_delta.contract import DeltaInputs, DeltaOperators, DeltaRecords

__all__ = ["DeltaInputs", "DeltaOperators", "DeltaRecords"]
