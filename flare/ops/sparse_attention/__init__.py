"""Card of the sparse attention family: a selector over groups of four tokens, and attention over what it selects.

axes     B lanes, W rows per lane, R = B × W, K = ⌈W / 4⌉ groups a lane can close, Hq query heads, Hk key heads,
         D head width, M index heads, I index width, C ring entries, S = budget + 3 selected positions at most
inputs   an `Interval` says which rows are candidates: row j of a lane stands at position p = N + j, active if j < count
         `norm_rotary`: x [R, H, D], weight [D], the two tensors `rotary_rows` gives for R positions (their width is the
         rotary width, at most D)
         `absorb_keys`: raw [B, W, I], an `IndexStream`, rotary rows of the B × K group starts 4⌊(N + 4i) / 4⌋
         `select_positions`: q [B, W, M, I] from `norm_rotary`, index pages [pages + 1, P, I / 4], budget in tokens
         `sparse_attend`: q [B, W, Hq, D], k_pages, v_pages [pages + 1, P, Hk, D], selection [B, W, any] int32, scale
         `reuse_selection`: recorded selection [A, S], its positions [A], source [B] row of it (anything outside 0..A−1
         means none), positions [B], tail T
         `sigmoid_gate`: x and gate of one shape
outputs  `norm_rotary` → [R, H, D]: x / sqrt(mean(x²) + eps) · (1 + weight), its first channels turned
         `absorb_keys` → intact [B] bool. Each group g whose last position 4g + 3 is an active row gets the key
             c_g = norm_rotary(mean of its four raw keys) at rotary position 4g, in entry g of the lane's index pages.
             Raw keys come from the rows at positions ≥ N and from ring entry position mod C before that; an entry whose
             tag is another position makes the lane not intact. Then the active rows (the last C of them) are written to
             the ring with their tags.
         `select_positions` → [B, W, S] int32, ascending, −1 after the last: of the G = ⌊(p + 1) / 4⌋ complete groups
             the min(budget / 4, G) with the largest Σ_m max(0, q_m · c_g) / √I — equal scores: the lower group — and
             the open tail 4G..p; inactive rows are −1
         `sparse_attend` → [B, W, Hq, D]: softmax(scale · q kᵀ) v over the selected positions; −1 is skipped; rows that
             are inactive or select nothing are 0
         `reuse_selection` → [B, S + T] int32: the recorded row and the positions a + 1..p after its own a, if
             a < p ≤ a + T; else −1
         `sigmoid_gate` → x · σ(gate)

With G ≤ budget / 4 every position is selected and the result is dense causal attention. Only entries below the
logical length of a row are read, so what rejected rows left behind may be anything. Arithmetic is float32 (float64 for
float64) and rounded once, but for two places where the checkpoint's own code rounds: the mean of a group and each step
of norm, products and sum in `norm_rotary`. Row j of a result does not depend on other rows, bit by bit.
"""

from flare.ops.sparse_attention.contract import GROUP_TOKENS, IndexStream, Interval, SparseOperators

__all__ = ["GROUP_TOKENS", "IndexStream", "Interval", "SparseOperators"]
