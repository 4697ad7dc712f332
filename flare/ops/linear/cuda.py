"""CUDA linears: plain weights; up to 8 rows by warps on their own, up to 32 on matrix units, more by cuBLAS.

The cuts are the best of those timed on an H200 for the weights of SmolLM2-135M in bfloat16.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from dataclasses import dataclass

import triton
from torch import Tensor
from torch.nn import functional

from flare.errors import PlanError
from flare.ops.linear.cuda_rows import linear_rows
from flare.ops.linear.cuda_vector import linear_vector
from flare.ops.linear.packed import PackedLinear
from flare.plan.packing import check_linear_format

VECTOR_ROWS = 8
"""Most rows the vector kernels take: their work grows with the rows, a matrix unit's does not up to 16."""

FEW_ROWS = 32
"""Most rows the few-row kernels take: a round of four requests with seven drafts each."""

_MANY_OUTPUTS = 8192
_WARP_BYTES = 128

_LANES_BYTES = 512
_VECTOR_INPUTS = 2048
_VECTOR_BLOCK = 2
_VECTOR_ROWS_AT_ONCE = 2
_SHORT_INPUTS = 1024


@dataclass(frozen=True)
class Tile:
    """How one weight's product on matrix units is cut; it follows from the weight's shape alone.

    Attributes:
        block: outputs of a program; slices: parts its inputs are cut into; slice: inputs of a part at a time.
        stages: reads under way before the first is used.
        warps: one for each slice where there are several.
    """

    block: int
    slices: int
    slice: int
    stages: int
    warps: int

    def constants(self) -> dict[str, int]:
        """What the kernels take as constants."""
        return {
            "BLOCK": self.block,
            "SLICES": self.slices,
            "SLICE": self.slice,
            "STAGES": self.stages,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def tile(packed: PackedLinear) -> Tile:
    """The cut of a weight: narrow blocks of outputs fill the chip, wide ones reread the rows less often."""
    warp_inputs = _WARP_BYTES // packed.payload.element_size()
    if packed.rows >= _MANY_OUTPUTS:
        return Tile(block=128, slices=1, slice=warp_inputs, stages=4, warps=4)
    if packed.columns <= _SHORT_INPUTS:
        return Tile(block=8, slices=2, slice=warp_inputs, stages=4, warps=2)
    return Tile(block=8, slices=4, slice=2 * warp_inputs, stages=3, warps=4)


def takes_vectors(rows: int, packed: PackedLinear) -> bool:
    """Whether the vector kernels take so many rows: a row of the weight fits in a warp's registers, and few outputs."""
    return rows <= VECTOR_ROWS and packed.columns <= _VECTOR_INPUTS and packed.rows < _MANY_OUTPUTS


def vector_cut(rows: int, packed: PackedLinear) -> tuple[int, int, dict[str, int]]:
    """Groups of rows, outputs of a warp, and what the vector kernels take as constants."""
    at_once = min(1 << (rows - 1).bit_length(), _VECTOR_ROWS_AT_ONCE)
    constants = {
        "K": packed.columns,
        "ROWS": at_once,
        "BLOCK": _VECTOR_BLOCK,
        "SLICE": _LANES_BYTES // packed.payload.element_size(),
        "num_warps": 1,
    }
    return -(-rows // at_once), _VECTOR_BLOCK, constants


def filled(rows: int) -> int:
    """Rows of the matrix kernels' tiles."""
    assert rows <= FEW_ROWS, rows
    return 16 if rows <= 16 else FEW_ROWS


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
    if takes_vectors(rows, packed):
        groups, block, constants = vector_cut(rows, packed)
        linear_vector[(groups, triton.cdiv(packed.rows, block))](*operands, ADDED=added, **constants)
        return
    cut = tile(packed)
    linear_rows[(triton.cdiv(packed.rows, cut.block),)](
        *operands, K=packed.columns, ADDED=added, ROWS=filled(rows), **cut.constants()
    )


def in_rows(x: Tensor) -> Tensor:
    """The same rows, each in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()
