"""Card of `silu_mul`, the gate of an MLP.

axes     R rows, F inner width
inputs   gate_up [R, 2F]: gates, then what they scale
outputs  y [R, F] = gate · sigmoid(gate) · up

Source: Shazeer 2020, SwiGLU.
"""
