"""Card of `copy_rows`: whole rows of several tables at once, for those lanes alone that copy anything.

axes     B lanes, K pairs of tables
inputs   tables: K pairs (from [N, ...], to [M, ...]) of equal entry shapes and dtypes; both may be the same tensor
         source [B] int64 rows of every `from`, target [B] int64 rows of every `to`; chosen [B] bool
outputs  to[target[b]] = from[source[b]] in every pair, for each b with chosen[b], bit for bit

Lanes that are not chosen read and write nothing, so they cost nothing; their rows may be any numbers, valid or not.
Chosen targets differ from each other and are no chosen source of the same table. Rows lie along the first axis; the
rest of an entry may be strided (pages by head: [pages + 1, 64, heads, ...] with heads outermost in memory). The same
pairs come back with every replay and never move, so an implementation may keep their addresses in one table and copy
all of them in one launch of B × K blocks that leave at once where their lane is not chosen.
"""
