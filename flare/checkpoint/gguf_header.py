"""The header of a GGUF file: key-value pairs and where each tensor lies.

The `gguf` package reads the same through one numpy view per string, which takes seconds for a vocabulary; this takes
milliseconds and says what is wrong with a broken file. Types and block sizes are the package's.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT_BYTES: Final = 32
SCALARS: Final = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}


class BrokenHeaderError(Exception):
    """The bytes are no GGUF header; the message completes "FILE ...". Never leaves this room."""


@dataclass(frozen=True)
class Extent:
    """A tensor of the file.

    Attributes:
        shape: torch's order, outermost first.
        start: offset of its first byte from the start of the file.
    """

    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Everything before the tensor data."""

    values: dict[str, Any]
    extents: dict[str, Extent]


def parse(data: memoryview) -> GgufHeader:
    """Read the header of a whole file and check that every tensor lies inside it.

    Raises:
        BrokenHeaderError: not GGUF, an unknown version or type, or an end before its time.
    """
    if len(data) == 0:
        raise BrokenHeaderError("is empty")
    if bytes(data[:4]) != MAGIC:
        raise BrokenHeaderError("is not a GGUF file: it does not begin with the letters GGUF")
    cursor = Cursor(data, position=4)
    version = cursor.scalar(GGUFValueType.UINT32)
    if version not in VERSIONS:
        raise BrokenHeaderError(f"is GGUF of version {version} (or big-endian); versions 2 and 3 can be read")
    tensors, pairs = cursor.scalar(GGUFValueType.UINT64), cursor.scalar(GGUFValueType.UINT64)
    values = {}
    for _ in range(pairs):
        key = cursor.string()
        values[key] = cursor.value(cursor.type())
    raw = [cursor.tensor() for _ in range(tensors)]
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    start = -(-cursor.position // alignment) * alignment
    extents = {name: located(name, shape, code, start + offset, len(data)) for name, shape, code, offset in raw}
    return GgufHeader(values, extents)


def located(name: str, shape: tuple[int, ...], code: int, start: int, file_bytes: int) -> Extent:
    """The extent of a tensor, checked against the size of the file."""
    try:
        type = GGMLQuantizationType(code)
    except ValueError:
        raise BrokenHeaderError(f"stores {name} in type {code}, which the gguf package does not know") from None
    block_values, block_bytes = GGML_QUANT_SIZES[type]
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    size = rows * (shape[-1] // block_values) * block_bytes if shape else block_bytes
    if start + size > file_bytes:
        raise BrokenHeaderError(f"is truncated: {name} ends at byte {start + size:,}, the file at byte {file_bytes:,}")
    return Extent(shape, type, start, size)


class Cursor:
    """A position in the bytes of a header; each call reads one thing and moves behind it."""

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise BrokenHeaderError(f"is truncated: its header goes on after its last byte ({len(self.data):,})")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def scalar(self, type: GGUFValueType) -> Any:
        layout = SCALARS[type]
        return layout.unpack(self.take(layout.size))[0]

    def string(self) -> str:
        try:
            return str(self.take(self.scalar(GGUFValueType.UINT64)), "utf-8")
        except UnicodeDecodeError:
            raise BrokenHeaderError(f"is damaged: the text before byte {self.position:,} is not UTF-8") from None

    def type(self) -> GGUFValueType:
        code = self.scalar(GGUFValueType.UINT32)
        try:
            return GGUFValueType(code)
        except ValueError:
            raise BrokenHeaderError(f"is damaged: value type {code} before byte {self.position:,}") from None

    def value(self, type: GGUFValueType) -> Any:
        """A scalar, a string, or a list of either."""
        if type == GGUFValueType.STRING:
            return self.string()
        if type != GGUFValueType.ARRAY:
            return self.scalar(type)
        item, count = self.type(), self.scalar(GGUFValueType.UINT64)
        if item in SCALARS:
            layout = SCALARS[item]
            return [value for (value,) in layout.iter_unpack(self.take(count * layout.size))]
        return [self.value(item) for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape outermost first, type code, offset from the start of the data."""
        name = self.string()
        dimensions = self.scalar(GGUFValueType.UINT32)
        shape = tuple(self.scalar(GGUFValueType.UINT64) for _ in range(dimensions))
        code, offset = self.scalar(GGUFValueType.UINT32), self.scalar(GGUFValueType.UINT64)
        return name, shape[::-1], code, offset
