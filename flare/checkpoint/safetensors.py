"""Hugging Face folders: config.json, tokenizer.json and safetensors files, whole or in shards."""

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from flare.checkpoint.folder_vocabulary import vocabulary_of
from flare.checkpoint.tensors import Damage, Layout, StoredTensor
from flare.contract.vocabulary import Vocabulary
from flare.errors import CheckpointError

WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
# Safetensors' own names of number formats, with the bytes of one value.
FORMATS: Final = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


class FolderCheckpoint:
    """An opened Hugging Face folder; see `Checkpoint` for what its members mean.

    Raises:
        CheckpointError: the folder or one of its files is missing, unreadable, empty or damaged. A damaged shard beside
            whole ones is kept for the one report of `check_headers`.
    """

    layout: Layout = "huggingface"

    def __init__(self, path: Path) -> None:
        self.path = path
        if not os.path.isdir(path):
            raise CheckpointError(f"{path} is not a folder; set checkpoint.path to one with config.json and {WHOLE}.")
        self.config: Mapping[str, Any] = read_json(path / "config.json")
        self._shards, self.damaged = opened_shards(path)
        self._where: dict[str, str] = {}
        headers: dict[str, StoredTensor] = {}
        for shard, file in self._shards.items():
            for name in file.keys():  # noqa: SIM118 — a safetensors file is no mapping
                self._where[name] = shard
                headers[name] = stored(name, file.get_slice(name), path / shard)
        self.headers: Mapping[str, StoredTensor] = headers

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self, name: str) -> Tensor:
        if name not in self._where:
            raise CheckpointError(f"{self.path} has no tensor {name}.")
        return self._shards[self._where[name]].get_tensor(name)

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return read_json(self.path / "tokenizer_config.json", optional=True)

    def document(self, name: str) -> dict[str, Any]:
        """A further JSON file of the folder; empty where there is none."""
        return read_json(self.path / name, optional=True)

    def vocabulary(self) -> Vocabulary:
        generation = read_json(self.path / "generation_config.json", optional=True)
        return vocabulary_of(self.path, self.config, self._tokenizer_config, generation)


def shard_names(path: Path) -> list[str]:
    """The weight files of a folder, from its index where it has one and no whole file."""
    if (path / WHOLE).exists():
        return [WHOLE]
    if not (path / INDEX).exists():
        others = ", ".join(sorted(file.name for file in path.glob("*.bin")))
        hint = f"it has {others}, which can run code when read: convert it" if others else "download them"
        raise CheckpointError(f"{path} has no weights ({WHOLE} or {INDEX}): {hint}.")
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise CheckpointError(f"{path / INDEX} has no weight_map: download it again.")
    names = sorted(set(places.values()))
    missing = [name for name in names if not (path / name).exists()]
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} of {len(names)} shards ({missing[0]}, …): download them.")
    return names


def opened_shards(path: Path) -> tuple[dict[str, Any], tuple[Damage, ...]]:
    """Weight files by name, and those of several that cannot be opened.

    Raises:
        CheckpointError: none can.
    """
    shards, causes = {}, {}
    for name in shard_names(path):
        try:
            shards[name] = opened(path / name)
        except CheckpointError as error:
            causes[name] = error
    if causes and not shards:
        raise next(iter(causes.values()))
    places = read_json(path / INDEX)["weight_map"] if causes else {}
    lost = {name: frozenset(tensor for tensor, shard in places.items() if shard == name) for name in causes}
    return shards, tuple(Damage(str(error).rstrip("."), lost[name]) for name, error in causes.items())


def opened(file: Path) -> Any:
    """A safetensors file, mapped into memory with its header checked against its size."""
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        empty = "it is empty" if file.exists() and file.stat().st_size == 0 else str(error)
        raise CheckpointError(f"Cannot read {file}: {empty}; download it again.") from error


def stored(name: str, header: Any, file: Path) -> StoredTensor:
    """The header record of one tensor."""
    code, shape = header.get_dtype(), tuple(header.get_shape())
    if code not in FORMATS:
        raise CheckpointError(f"{file} stores {name} as {code}, which is not one of {', '.join(FORMATS)}.")
    format, value_bytes = FORMATS[code]
    tensor = StoredTensor(name, shape, format, 0)
    return StoredTensor(name, shape, format, tensor.values * value_bytes)


def read_json(file: Path, optional: bool = False) -> dict[str, Any]:
    """An object from a JSON file; a missing optional one is empty."""
    if optional and not file.exists():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} has no {file.name}: download it, or correct checkpoint.path.") from None
    except OSError as error:
        raise CheckpointError(f"Cannot read {file}: {error.strerror}; check checkpoint.path.") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}): download it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds no JSON object: download it again.")
    return value
