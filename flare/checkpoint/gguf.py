"""GGUF checkpoints: one file with tensors, architecture facts and tokenizer; quantised types expand to float32."""

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor

from flare.checkpoint.gguf_header import BrokenHeaderError, Extent, GgufHeader, parse
from flare.checkpoint.gguf_vocabulary import vocabulary_of
from flare.checkpoint.tensors import Damage, Layout, StoredTensor
from flare.contract.vocabulary import Vocabulary
from flare.errors import CheckpointError

# Types that hold plain numbers: numpy dtype in the file, torch dtype of the result.
PLAIN = {
    GGMLQuantizationType.F64: ("<f8", torch.float64),
    GGMLQuantizationType.F32: ("<f4", torch.float32),
    GGMLQuantizationType.F16: ("<f2", torch.float16),
    GGMLQuantizationType.BF16: ("<i2", torch.bfloat16),
    GGMLQuantizationType.I8: ("<i1", torch.int8),
    GGMLQuantizationType.I16: ("<i2", torch.int16),
    GGMLQuantizationType.I32: ("<i4", torch.int32),
    GGMLQuantizationType.I64: ("<i8", torch.int64),
}
QUANTISED_FORMATS = frozenset(type.name.lower() for type in GGMLQuantizationType if type not in PLAIN)


class GgufCheckpoint:
    """An opened GGUF file, mapped into memory; see `Checkpoint` for what its members mean.

    Raises:
        CheckpointError: the file is missing, unreadable, empty, truncated, no GGUF, or one part of several.
    """

    layout: Layout = "gguf"
    damaged: Sequence[Damage] = ()  # a GGUF file is whole or not opened at all

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, self._header = opened(path)
        if self._header.values.get("split.count", 1) > 1:
            raise CheckpointError(f"{path} is one of several parts: join them first with llama-gguf-split --merge.")
        pairs = self._header.values.items()
        # Without the long lists of the tokenizer, which `vocabulary` reads.
        self.config: Mapping[str, Any] = {key: value for key, value in pairs if not isinstance(value, list)}
        self.headers: Mapping[str, StoredTensor] = {
            name: stored(name, extent) for name, extent in self._header.extents.items()
        }

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self, name: str) -> Tensor:
        extent = self._header.extents.get(name)
        if extent is None:
            raise CheckpointError(f"{self.path} has no tensor {name}.")
        raw = np.frombuffer(self._data, np.uint8, extent.bytes, extent.start)
        if extent.type in PLAIN:
            number, dtype = PLAIN[extent.type]
            # A copy, because the mapping is read-only and torch would write through it.
            return torch.from_numpy(raw.view(number).reshape(extent.shape).copy()).view(dtype)
        try:
            values = dequantize(raw.reshape(*extent.shape[:-1], -1), extent.type)
        except NotImplementedError:
            kind = extent.type.name.lower()
            raise CheckpointError(
                f"{self.path} stores {name} as {kind}, which the gguf package cannot expand."
            ) from None
        return torch.from_numpy(np.ascontiguousarray(values, np.float32).reshape(extent.shape))

    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self._header.values, self.origin)


def opened(path: Path) -> tuple[memoryview, GgufHeader]:
    """Map the file and parse its header; errors as sentences for the user."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            # An empty file cannot be mapped; parse() has the sentence for it.
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror}; check checkpoint.path.") from error
    try:
        return data, parse(data)
    except BrokenHeaderError as error:
        raise CheckpointError(f"{path} {error}; get the file again or correct checkpoint.path.") from error


def stored(name: str, extent: Extent) -> StoredTensor:
    """The header record of an extent."""
    plain = PLAIN.get(extent.type)
    format = str(plain[1]).removeprefix("torch.") if plain else extent.type.name.lower()
    return StoredTensor(name, extent.shape, format, extent.bytes)
