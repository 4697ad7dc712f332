"""The packed NVFP4 decoder of CUDA kernels, instruction by instruction, on words."""

from math import ldexp

import numpy as np
import pytest
import torch

formats = pytest.importorskip("flare.ops.formats.cuda")


class Ptx:
    """The few instructions of the packed decoder, as the PTX manual defines them, on 32-bit words."""

    def __init__(self, words: dict[str, int]) -> None:
        self.words = words

    def value(self, operand: str) -> int:
        return self.words[operand] if operand in self.words else int(operand, 0)

    def run(self, text: str) -> dict[str, int]:
        for line in text.replace("{", "").replace("}", "").split(";"):
            name, _, rest = line.strip().partition(" ")
            if name and not name.startswith("."):
                target, *sources = [part.strip() for part in rest.split(",")]
                self.words[target] = getattr(self, name.replace(".", "_"))(*map(self.value, sources)) & 0xFFFFFFFF
        return self.words

    def prmt_b32(self, a: int, b: int, selector: int) -> int:
        both = (a | b << 32).to_bytes(8, "little")
        return sum(both[selector >> 4 * place & 7] << 8 * place for place in range(4))

    def shr_b32(self, a: int, count: int) -> int:
        return a >> count

    def shl_b32(self, a: int, count: int) -> int:
        return a << count

    def and_b32(self, a: int, b: int) -> int:
        return a & b

    def lop3_b32(self, a: int, b: int, c: int, table: int) -> int:
        chosen = [(a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1) for bit in range(32)]
        return sum((table >> index & 1) << bit for bit, index in enumerate(chosen))

    def mul_rn_bf16x2(self, a: int, b: int) -> int:
        product = 0
        for half in (0, 16):
            exact = bfloat16(a >> half & 0xFFFF) * bfloat16(b >> half & 0xFFFF)
            assert exact == float(np.float32(exact))
            bits = int(np.float32(exact).view(np.uint32))
            assert bits & 0xFFFF == 0, "the product is exact in bfloat16"
            product |= bits >> 16 << half
        return product


def bfloat16(bits: int) -> float:
    return float(np.array(bits << 16, np.uint32).view(np.float32))


def test_the_packed_decoder_is_exact_for_every_byte_and_scale() -> None:
    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    for number, scale in enumerate(scales.tolist()):
        raised = torch.tensor(scale * 2.0**118).bfloat16()
        assert float(raised) == ldexp(scale, 118)
        half = int(raised.view(torch.int16))
        for first in range(number % 4, 256, 4 if number else 1):
            code = [(first + 37 * place) % 256 for place in range(4)]
            word = sum(byte << 8 * place for place, byte in enumerate(code))
            words = Ptx({"$4": word, "$5": half << 16 | half, "$6": half << 16 | half}).run(formats._PAIRS.value)
            for side, shift in ((0, 0), (2, 4)):
                for place, byte in enumerate(code):
                    made = bfloat16(words[f"${side + place // 2}"] >> 16 * (place % 2) & 0xFFFF)
                    nibble = byte >> shift & 15
                    value = magnitudes[nibble & 7] * (-1 if nibble & 8 else 1)
                    assert made == value * scale * formats.SHRINK.value, (scale, byte)
