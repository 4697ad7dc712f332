"""Compiles the kernels that are launched early for a GPU with early launches, which need not be here.

Run as a program, outside Triton's interpreter: prints each kernel's Triton IR, by name, as JSON.
"""

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flare.ops.attention.cuda_split import attend_splits
from flare.ops.linear.cuda_few import linear_few
from flare.ops.projection.cuda_few import gate_few, head_few

FLOATS = {"eps": "fp32", "scale": "fp32"}
TYPES = {"cosines": "*fp32", "signed_sines": "*fp32", "index": "*i64", "page_tables": "*i32", "lengths": "*i64",
         "counts": "*i64", "partial": "*fp32", "statistics": "*fp32", "tickets": "*i32"}  # fmt: skip
BFLOAT16 = ("x", "weight", "norm", "y", "query", "keys", "values")
SEATED = {"K": 64, "ROWS": 8, "OUTPUTS": 16, "SLICES": 2, "TILES": 1}
ATTENDED = {"WIDTH": 1, "GROUP": 1, "DIM": 16, "CHANNELS": 16, "PAGE": 64, "SPLIT": 128, "BLOCK": 128, "SPLITS": 2,
            "JOINED": 2}  # fmt: skip
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear_few": (linear_few, {**SEATED, "ADDED": False}),
    "linear_few, added": (linear_few, {**SEATED, "ADDED": True}),
    "gate_few": (gate_few, {**SEATED, "F": 32}),
    "head_few": (head_few, {**SEATED, "QUERY_HEADS": 2, "KEY_HEADS": 1, "DIM": 16}),
    "attend_splits": (attend_splits, ATTENDED),
}


def compiled(kernel: Any, constants: dict[str, Any]) -> str:
    """Triton IR of the kernel with these constants, launched early."""
    constants = {**constants, "EARLY": True}
    types = FLOATS | TYPES | dict.fromkeys(BFLOAT16, "*bf16") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"launch_pdl": True}).asm["ttir"]


if __name__ == "__main__":
    print(json.dumps({name: compiled(*kernel) for name, kernel in KERNELS.items()}))
