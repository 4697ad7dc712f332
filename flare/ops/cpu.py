"""The operator set of a CPU."""

from flare.ops.activation.cpu import silu_mul
from flare.ops.attention.cpu import paged_attention, write_pages
from flare.ops.embedding.cpu import embed
from flare.ops.linear.cpu import linear, pack_linear
from flare.ops.logprobs.cpu import report_logprobs
from flare.ops.norm.cpu import add_rms_norm, rms_norm
from flare.ops.operators import Operators
from flare.ops.rotary.cpu import apply_rotary, rotary_rows, rotary_table
from flare.ops.sampling.chain_cpu import chain_verify
from flare.ops.sampling.law_cpu import target_law

CPU = Operators(
    pack_linear=pack_linear,
    linear=linear,
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    rotary_table=rotary_table,
    rotary_rows=rotary_rows,
    apply_rotary=apply_rotary,
    write_pages=write_pages,
    paged_attention=paged_attention,
    silu_mul=silu_mul,
    embed=embed,
    target_law=target_law,
    chain_verify=chain_verify,
    report_logprobs=report_logprobs,
)
