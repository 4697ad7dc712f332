"""Prefill of the gated delta rule by fla-core's chunked kernels, which read a matrix once per 64 rows.

The package is optional. Its first call for a geometry tunes for tens of seconds, so it belongs in the warm-up, and it
is called on dense rows: its calls with lengths of sequences are not for graphs. Inactive rows get β = 0 and no decay,
which leaves the matrix as it is. Its products are bfloat16: a matrix ends within 3.4·10⁻³ of the recurrence's.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import softplus

from flare.ops.gated_delta.contract import DeltaInputs
from flare.ops.short_conv import LaneRows

FEWEST_ROWS = 64
"""One chunk: below it the recurrence reads no more and rounds less."""
_HEAD_WIDTHS = (64, 128, 256)


@cache
def chunked_kernel() -> Callable[..., tuple[Tensor, Tensor]] | None:
    """fla-core's function, or None where the package is missing; the same answer in the whole process."""
    if find_spec("fla") is None:
        return None
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore[reportMissingImports]

    return chunk_gated_delta_rule


def fits_chunks(inputs: DeltaInputs, matrix: Tensor) -> bool:
    """Whether rows are enough, and widths and dtype such as the kernels are made for."""
    widths = set(matrix.shape[2:]) <= set(_HEAD_WIDTHS)
    return widths and inputs.qkv.shape[1] >= FEWEST_ROWS and inputs.qkv.dtype == torch.bfloat16


def prefill_chunked(
    inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, kernel: Callable[..., tuple[Tensor, Tensor]]
) -> Tensor:
    """See the card of the room."""
    lane_count, width = inputs.qkv.shape[:2]
    _, heads, value_dim, key_dim = matrix.shape
    key_width = (inputs.qkv.shape[2] - heads * value_dim) // 2
    inactive = torch.arange(width, device=matrix.device) >= lanes.counts[:, None]
    query, key, value = inputs.qkv.masked_fill(inactive[..., None], 0).split(
        (key_width, key_width, heads * value_dim), dim=-1
    )
    rate = softplus(inputs.a.float() + inputs.dt_bias.float())
    decay = (-inputs.a_log.float().exp() * rate).masked_fill(inactive[..., None], 0)
    beta = inputs.b.float().sigmoid().to(inputs.b.dtype).masked_fill(inactive[..., None], 0)
    held = matrix[lanes.slots]
    output, final = kernel(
        query.reshape(lane_count, width, -1, key_dim),
        key.reshape(lane_count, width, -1, key_dim),
        value.reshape(lane_count, width, heads, value_dim),
        g=decay,
        beta=beta,
        scale=key_dim**-0.5,
        initial_state=held.masked_fill((lanes.lengths == 0).view(-1, 1, 1, 1), 0),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        state_v_first=True,
    )
    kept = (lanes.counts == 0).view(-1, 1, 1, 1)
    matrix.index_copy_(0, lanes.slots, torch.where(kept, held, final.to(matrix.dtype)))
    return output.to(inputs.qkv.dtype).masked_fill(inactive[..., None, None], 0)
