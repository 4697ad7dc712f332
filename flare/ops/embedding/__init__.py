"""Card of `embed`.

axes     R rows, V vocabulary, H hidden
inputs   table [V, H]; tokens [R] int64, valid ids everywhere (the caller sees to inactive rows)
outputs  y [R, H] = table[tokens], a copy the caller may change
"""
