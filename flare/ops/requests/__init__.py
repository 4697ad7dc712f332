"""Card of the requests family: what a round reads of its requests before its target runs, and what it leaves behind.

Integer bookkeeping over few lanes, so that all of it costs a handful of launches; it computes nothing of a model.

axes     B lanes, D drafts, W = D + 1 rows per lane, R = B × W, S request slots (tables hold S + 1, the null slot last),
         F feedback, H output, V vocabulary (V itself is the end marker), C = 14 tokens of a continuation
inputs   table: the request table, see `Table`; arguments: a frame's, see `contract.frames.Arguments`
         `open_lanes`: the count of lanes, and whether a request that has ended still counts as live
         `make_offer`: proposed tokens [B, D], whether they are drafts, lanes, their pages, the marker V
         `causal_rows`: tokens [B, W], counts [B], lengths [B], slots [B], pages
         `clip`: lanes, sampled tokens [B, W], accepted [B]
         `find_crossing`: lengths [B], emitted [B], boundary rows [B] (−1: none), null slot, W
         `commit`: a `Move`, an emission
         `find_faults`: output [R, H], active [B, W], the dtype sums are taken in
         `write_records`: an `Outcome`, records [S + 1, 16 + W'] with W' ≥ W, verification width and id of the graph
outputs  `open_lanes` → `Lanes`: live where the generation is the slot's and the request has not ended; the columns of
             its slot, where the draws of each domain begin, budget = max_tokens − generated
         `make_offer` → `Offer`. A continuation holds the tokens from position A on and the one before A. It fits where
             it agrees with all that was committed since A, the pending token included; what remains of it replaces the
             head of the proposal, and a stale one offers nothing. Proposed drafts count where they are drafts and every
             copied one equals the proposed one in its place. Of the drafts, min(ceiling, budget − 1) are valid, none in
             a dead lane; the marker stands from there on
         `causal_rows` → `Rows`: row j at position min(N + j, context − 1), active if j < count
         `clip` → `Emission`: tokens 0..accepted, up to the first stop id and to the budget; dead lanes emit nothing
         `find_crossing` → `Crossing`: the multiple P of 64 with N < P ≤ N + t, where a row is named for it
         `commit` in place: see `Move`; the emitted tokens are x[N' − t + 1 … N'] of the new consumed count N', the last
             one is pending, and every one of them is counted once
         `find_faults` → [B] bool: an active row whose sum over H is not finite
         `write_records` in place: one record per named slot

Every result is the same on every device, bit for bit. The null slot's row of a table, and its record, hold nothing
anybody reads: implementations may write there or not.
"""

from flare.ops.requests.contract import Crossing, Emission, Lanes, Move, Offer, Outcome, RequestOperators, Table
from flare.ops.requests.rows import PageTables, Rows

__all__ = [
    "Crossing",
    "Emission",
    "Lanes",
    "Move",
    "Offer",
    "Outcome",
    "PageTables",
    "RequestOperators",
    "Rows",
    "Table",
]
