"""Philox draws inside Triton kernels, bit for bit those of `philox.py`."""

# Launch options, constants and loops of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl


@triton.jit
def uniform(seed, offset):
    """One float32 uniform in (0, 1] per element of `offset`; seed and offset int64, their bits read as unsigned."""
    position = offset.to(tl.uint64)
    block, word = position >> 2, position & 3
    nothing = (block & 0).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32), nothing, nothing)
    bits = tl.where(word == 0, w0, tl.where(word == 1, w1, tl.where(word == 2, w2, w3)))
    # The product is exact, so one rounding is left, as in a fused multiply-add.
    return bits.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
