"""Bounds and shapes of what operators keep in a form of their own: packed linears.

Packed storage is opaque (a library decides its layout), so the plan declares an upper bound and reports it apart.
"""

from flare.errors import PlanError
from flare.plan.declarations import DTYPE_BYTES
from flare.plan.plan import DeviceName

LINEAR_FORMATS = ("dense", "int4")

INT4_GROUP = 32
"""Inputs that share one scale and one minimum: the group of GGUF's Q4_1, whose grid `int4` therefore recovers."""

_BLOCK = 64
"""oneDNN blocks weights by at most 64 outputs and 64 inputs and fills the last block with zeros."""

_INT4_ROWS = 16


def packed_linear_bytes(
    rows: int, columns: int, dtype: str, linear_format: str, device: DeviceName = "cpu"
) -> int | None:
    """Upper bound of one packed weight [rows, columns]; None where the device keeps it as declared.

    Raises:
        PlanError: the format does not exist or cannot hold this shape.
    """
    check_linear_format(rows, columns, linear_format)
    if device == "cuda":
        if linear_format != "dense":
            raise PlanError(f"preparation.linear_format={linear_format} needs preparation.device=cpu; CUDA takes dense")
        return None
    if dtype == "float64":
        return rows * columns * DTYPE_BYTES[dtype]
    if linear_format == "int4":
        return rows * columns // 2 + 2 * rows * (columns // INT4_GROUP) * DTYPE_BYTES[dtype]
    return _filled(rows) * _filled(columns) * DTYPE_BYTES[dtype]


def check_linear_format(rows: int, columns: int, linear_format: str) -> None:
    """Refuse a format that does not exist or cannot hold a weight of this shape.

    Raises:
        PlanError: names the shape and what the format needs.
    """
    if linear_format not in LINEAR_FORMATS:
        raise PlanError(f"preparation.linear_format={linear_format} does not exist; it may be dense or int4")
    if linear_format == "int4" and (rows % _INT4_ROWS or columns % INT4_GROUP):
        raise PlanError(
            f"preparation.linear_format=int4 needs outputs in multiples of {_INT4_ROWS} and inputs in multiples of "
            f"{INT4_GROUP}, and this recipe has a linear of {rows} x {columns}; dense takes any shape"
        )


def _filled(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
