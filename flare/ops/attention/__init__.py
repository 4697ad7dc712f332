"""Card of `write_pages` and `paged_attention`: grouped-query attention over keys and values kept in pages of 64 tokens.

axes     B lanes, W rows per lane, R = B × W, Hq query heads, Hk key heads (Hq a multiple), D head width, P page slots
inputs   k_pages, v_pages [pages + 1, 64, Hk, D], the null page last; any strides under which pages and
         tokens merge into one axis (quickest with heads outermost in memory)
         `write_pages`: k, v [R, Hk, D], index [R] int64 = page · 64 + offset (null page for inactive rows)
         `paged_attention`: q [B, W, Hq, D], page_tables [B, P] int32 or int64, lengths [B] committed tokens N,
         counts [B] active rows of each lane (the first ones; 0 for a dead lane), scale of the scores
outputs  y [B, W, Hq, D], contiguous: active row j is softmax(scale · q kᵀ) v over positions 0..N + j, inactive
         rows are 0

Keys and values of the active rows must already be in the pages, at N..N + counts − 1. Nothing past that is read, so it
may hold anything. An operator may clear the rest of a lane's last page, which is private and beyond its length.

A row's bits depend on neither batch nor width: on the CPU in float32, on CUDA in every dtype for up to 128 rows × query
heads of a key head in a lane. On CUDA the calls of one stream share counters: a graph replays on the stream it was
captured on, or on one ordered with it. There page_tables, lengths and counts are read while the kernel launched just
before may still run: it must not be the one that writes them (`flare/ops/cuda_early.py`).
"""
