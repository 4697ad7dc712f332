"""CUDA linears: plain weights; up to 32 rows in seats of the matrix unit, more by cuBLAS.

The cuts are the best of those timed on an H200 for bfloat16 weights of SmolLM2-135M and Qwen3.8.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from typing import NamedTuple

import triton
from torch import Tensor
from torch.nn import functional

from flare.errors import PlanError
from flare.ops.cuda_early import early
from flare.ops.linear.cuda_few import SEATS, linear_few
from flare.ops.linear.packed import PackedLinear
from flare.plan.packing import check_linear_format

FEW_ROWS = 32
"""Most rows the kernels with seats take: a round of four requests with seven drafts each."""

_SHORT_INPUTS, _LONG_INPUTS = 1024, 2048
_SOME_OUTPUTS, _MANY_OUTPUTS = 1024, 8192
_TILE_BYTES = 64


class Seats(NamedTuple):
    """How one weight's product with seats is cut.

    Attributes:
        outputs: rows of the weight of a program, a power of two from 8 on.
        slices: warps of a program; inputs are dealt to them.
        tiles: most reads of 64 bytes of a weight row that a warp has under way at once.
    """

    outputs: int
    slices: int
    tiles: int

    def constants(self, rows: int, packed: PackedLinear) -> dict[str, int]:
        """What the kernels take as constants; tiles are shared evenly by the passes through the inputs."""
        tile = _TILE_BYTES // packed.payload.element_size()
        count = -(-packed.columns // (tile * self.slices))
        passes = -(-count // self.tiles)
        return {
            "K": packed.columns,
            "ROWS": max(SEATS.value, 1 << (rows - 1).bit_length()),
            "OUTPUTS": self.outputs,
            "SLICES": self.slices,
            "TILES": -(-count // passes),
            "num_warps": self.slices,
            **early(packed.payload),
        }


def seats(packed: PackedLinear) -> Seats:
    """The cut of a weight that nothing is fused with; it follows from the weight's shape alone."""
    if packed.rows >= _MANY_OUTPUTS:
        return Seats(32, 2, 5)
    if packed.columns <= _SHORT_INPUTS:
        return Seats(16, 2, 9)
    if packed.columns <= _LONG_INPUTS:
        return Seats(8, 4, 12)
    return Seats(8, 8, 10) if packed.rows < _SOME_OUTPUTS else Seats(16, 4, 8)


def pack_linear(weight: Tensor, linear_format: str) -> PackedLinear:
    """The weight itself, on the device it is on: [N, K] with each row in one piece.

    Raises:
        PlanError: the format does not exist, or is not one of CUDA.
    """
    rows, columns = weight.shape
    check_linear_format(rows, columns, linear_format)
    if linear_format != "dense":
        raise PlanError(
            f"preparation.linear_format={linear_format} is read by CPU kernels only; "
            "preparation.device=cuda takes preparation.linear_format=dense"
        )
    return PackedLinear(rows, columns, "dense", weight.detach().contiguous())


def linear(x: Tensor, packed: PackedLinear, *, out: Tensor | None = None) -> Tensor:
    """See the card."""
    if x.shape[0] > FEW_ROWS:
        y = functional.linear(x, packed.payload)
        return y if out is None else out.copy_(y)
    y = x.new_empty((x.shape[0], packed.rows)) if out is None else out
    launch_rows(x, packed, y, added=False)
    return y


def launch_rows(x: Tensor, packed: PackedLinear, y: Tensor, *, added: bool) -> None:
    """y = x · Wᵀ, or y += x · Wᵀ where `added`, for few rows."""
    x, rows = in_rows(x), x.shape[0]
    assert y.stride(1) == 1, "rows lie in one piece"
    operands = (x, packed.payload, y, x.stride(0), y.stride(0), rows, packed.rows)
    few = seats(packed)
    linear_few[(triton.cdiv(packed.rows, few.outputs),)](*operands, ADDED=added, **few.constants(rows, packed))


def in_rows(x: Tensor) -> Tensor:
    """The same rows, each in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()
