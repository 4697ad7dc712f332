"""CUDA sparse attention: the family's Triton kernels as one set."""

from flare.ops.sparse_attention.contract import SparseOperators
from flare.ops.sparse_attention.cuda_attend import sparse_attend
from flare.ops.sparse_attention.cuda_rows import absorb_keys, norm_rotary, reuse_selection, sigmoid_gate
from flare.ops.sparse_attention.cuda_select import select_positions

SPARSE = SparseOperators(
    norm_rotary=norm_rotary,
    absorb_keys=absorb_keys,
    select_positions=select_positions,
    sparse_attend=sparse_attend,
    reuse_selection=reuse_selection,
    sigmoid_gate=sigmoid_gate,
)
