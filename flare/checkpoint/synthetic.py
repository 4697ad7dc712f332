"""Synthetic checkpoints: seeded weights in a recipe's own repository layout, written once and read like any other."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from flare.checkpoint.safetensors import INDEX
from flare.checkpoint.wheel import cache_folder
from flare.errors import CheckpointError

NOTE: Final = "synthetic.json"


@dataclass(frozen=True)
class Synthesis:
    """How to make a recipe's synthetic checkpoint.

    Attributes:
        recipe: its name, for the folder's.
        settings: what the weights depend on beside the seed, in a form that JSON can hold.
        seed: names the weights.
        write: called with an empty folder and the seed; writes the whole checkpoint into it.
        path: where it is kept; None is the cache folder.
    """

    recipe: str
    settings: Mapping[str, object]
    seed: int
    write: Callable[[Path, int], None]
    path: Path | None = None

    @property
    def identity(self) -> str:
        """What tells this checkpoint from every other: a hash of recipe, settings, seed and Flare's version."""
        facts = json.dumps([self.recipe, self.settings, self.seed, version("flare")], sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where it is or will be."""
        return self.path or cache_folder() / "synthetic" / f"{self.recipe}-{self.identity[:16]}"


def synthesized(synthesis: Synthesis) -> Path:
    """The checkpoint's folder, written first unless it is there.

    It enters its place by one atomic rename, so a broken write is never seen and two processes do not disturb each
    other.

    Raises:
        CheckpointError: the place holds something else, or cannot be written.
    """
    folder = synthesis.folder
    if is_written(synthesis):
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(
            f"{folder} holds something other than this synthetic checkpoint: set checkpoint.path to a new folder."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".synthetic-") as scratch:
            part = Path(scratch) / "part"
            part.mkdir()
            synthesis.write(part, synthesis.seed)
            (part / NOTE).write_text(json.dumps({"identity": synthesis.identity}))
            os.replace(part, folder)
    except OSError as error:
        # Another process may have finished the same checkpoint meanwhile.
        if is_written(synthesis):
            return folder
        raise CheckpointError(
            f"Cannot write {folder}: {error.strerror}; set checkpoint.path to another folder."
        ) from error
    return folder


def is_written(synthesis: Synthesis) -> bool:
    """Whether the folder holds this very checkpoint."""
    note = synthesis.folder / NOTE
    return note.is_file() and json.loads(note.read_text()).get("identity") == synthesis.identity


def refuse_without_room(folder: Path, wanted_bytes: int) -> None:
    """Compare what will be written with what the disk has left.

    Raises:
        CheckpointError: it does not fit.
    """
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise CheckpointError(
            f"A synthetic checkpoint of this geometry takes {wanted_bytes:,} bytes, and {folder} has {free_bytes:,} "
            "left: use a smaller geometry, or set checkpoint.path to a folder with more room."
        )


def write_shards(folder: Path, groups: Iterable[Mapping[str, Tensor]], shard_bytes: int) -> None:
    """Safetensors files and their index, made one file at a time.

    Args:
        groups: tensors that stay together, produced as they are consumed.
        shard_bytes: a file is closed once it holds this many.
    """
    held: dict[str, Tensor] = {}
    shards: list[list[str]] = []
    held_bytes, total_bytes = 0, 0

    def close() -> None:
        save_file({name: tensor.contiguous() for name, tensor in held.items()}, folder / f"part-{len(shards)}")
        shards.append(list(held))
        held.clear()

    for group in groups:
        held |= group
        held_bytes += sum(tensor.nbytes for tensor in group.values())
        if held_bytes >= shard_bytes:
            close()
            held_bytes, total_bytes = 0, total_bytes + held_bytes
    total_bytes += held_bytes
    if held:
        close()
    places = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"part-{index}").rename(folder / file)
        places |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": places}))


def draws(seed: int, name: str) -> torch.Generator:
    """The random numbers of one tensor, whatever is drawn before it."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
