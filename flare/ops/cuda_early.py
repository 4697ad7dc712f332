"""Early launch: a kernel begins while the one before it ends, and waits where it first needs what that one wrote.

A round of a small model is a chain of some 170 kernels of a few microseconds. Launched early (CUDA's programmatic
dependent launch; a captured graph keeps such edges) a kernel's start and its reads of weights fall into the end of the
kernel before it.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_SINCE_CAPABILITY = (9, 0)


@triton.jit
def await_earlier(EARLY: tl.constexpr):
    """Wait until everything written by earlier kernels can be read; only then may the next kernel begin.

    In this order at most two kernels overlap. What a kernel reads before it calls this is a weight, or was written two
    launches before; it writes nothing before. Every kernel launched early calls it, or the chain would break.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def early(operand: Tensor) -> dict[str, bool]:
    """What a launch on the operand's device adds to its constants, for a kernel that calls `await_earlier`."""
    possible = operand.is_cuda and _capability(operand.device) >= _SINCE_CAPABILITY
    return {"EARLY": possible, "launch_pdl": possible}


@lru_cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
