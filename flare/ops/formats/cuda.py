"""NVFP4 inside Triton kernels: codes to values one at a time, or packed bytes to scaled bfloat16 pairs."""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

SHRINK = tl.constexpr(2.0**-8)
"""What `scaled_pairs` leaves out of its products, so that scales times 2¹¹⁸ stay finite in bfloat16."""

# A byte lies in the upper half of each 16 bits: the even element's exponent and mantissa bit in bits 8 to 10, its sign
# in bit 11, the odd one's in bits 12 to 14 and 15. Bits 6 to 8 and 15 are where bfloat16 has them; there they mean the
# value times 2^-126, subnormal included: the exponents' biases are 1 and 127. Products of up to six bits are exact.
_PAIRS = tl.constexpr("""
{
    .reg .b32 spread, bits, sign;
    prmt.b32 spread, $4, 0, 0x1404;
    shr.b32 bits, spread, 2;
    and.b32 bits, bits, 0x01C001C0;
    shl.b32 sign, spread, 4;
    lop3.b32 bits, sign, 0x80008000, bits, 0xEA;
    mul.rn.bf16x2 $0, bits, $5;
    shr.b32 bits, spread, 6;
    and.b32 bits, bits, 0x01C001C0;
    lop3.b32 bits, spread, 0x80008000, bits, 0xEA;
    mul.rn.bf16x2 $2, bits, $5;
    prmt.b32 spread, $4, 0, 0x3424;
    shr.b32 bits, spread, 2;
    and.b32 bits, bits, 0x01C001C0;
    shl.b32 sign, spread, 4;
    lop3.b32 bits, sign, 0x80008000, bits, 0xEA;
    mul.rn.bf16x2 $1, bits, $6;
    shr.b32 bits, spread, 6;
    and.b32 bits, bits, 0x01C001C0;
    lop3.b32 bits, spread, 0x80008000, bits, 0xEA;
    mul.rn.bf16x2 $3, bits, $6;
}
""")


@triton.jit
def e2m1(code):
    """Values, float32, of four-bit codes in the low bits of an integer tensor.

    Exponent and first mantissa bit of a code, put where float16 has its own, make the value times 2^-14, subnormal
    included: the exponents' biases are 1 and 15.
    """
    wide = code.to(tl.int16)
    bits = ((wide & 8) << 12) | ((wide & 7) << 9)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def scaled_pairs(packed, scale, kind: tl.constexpr):
    """Even and odd elements, in `kind`, of bytes times their scales float32 (shapes broadcast), times SHRINK; exact."""
    if kind == tl.bfloat16:
        raised = (scale * 2.0**118).to(tl.bfloat16)
        return tl.inline_asm_elementwise(
            _PAIRS, "=r,=r,=r,=r,r,r,r", [packed, raised], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    shrunk = scale * SHRINK
    return (e2m1(packed & 15) * shrunk).to(kind), (e2m1(packed >> 4) * shrunk).to(kind)
