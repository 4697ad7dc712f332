"""The operator set of CUDA: kernels read lengths, tables and counts on the device, so that graphs can hold them."""

from flare.ops.activation.cuda import silu_mul
from flare.ops.attention.cuda import paged_attention, write_pages
from flare.ops.embedding.cuda import embed
from flare.ops.gated_delta.cuda import DELTA
from flare.ops.hyperconnection.cuda import inject_streams, mix_streams, scaled_silu
from flare.ops.linear.cuda import linear, pack_linear
from flare.ops.logprobs.cuda import report_logprobs
from flare.ops.moe.cuda import add_gated, experts, route
from flare.ops.ngram.cuda import dilated_conv, gate_streams, ngram_lookup, ngram_rows
from flare.ops.norm.cuda import add_rms_norm, rms_norm, zero_centred_norm
from flare.ops.operators import Operators
from flare.ops.projection.cuda import add_linear, norm_gate, project_heads
from flare.ops.requests.cuda import REQUESTS
from flare.ops.rotary.cuda import apply_rotary, rotary_rows, rotary_table
from flare.ops.sampling.cuda_chain import chain_verify
from flare.ops.sampling.cuda_law import target_law
from flare.ops.slots.cuda import copy_rows
from flare.ops.sparse_attention.cuda import SPARSE

CUDA = Operators(
    pack_linear=pack_linear,
    linear=linear,
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    rotary_table=rotary_table,
    rotary_rows=rotary_rows,
    apply_rotary=apply_rotary,
    write_pages=write_pages,
    paged_attention=paged_attention,
    project_heads=project_heads,
    norm_gate=norm_gate,
    add_linear=add_linear,
    silu_mul=silu_mul,
    embed=embed,
    zero_centred_norm=zero_centred_norm,
    scaled_silu=scaled_silu,
    mix_streams=mix_streams,
    inject_streams=inject_streams,
    route=route,
    experts=experts,
    add_gated=add_gated,
    ngram_rows=ngram_rows,
    ngram_lookup=ngram_lookup,
    gate_streams=gate_streams,
    dilated_conv=dilated_conv,
    sparse=SPARSE,
    target_law=target_law,
    chain_verify=chain_verify,
    report_logprobs=report_logprobs,
    copy_rows=copy_rows,
    delta=DELTA,
    requests=REQUESTS,
)
