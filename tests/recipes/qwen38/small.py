"""The two geometries of the recipe's own YAML, and a small synthetic folder to damage."""

import json
from pathlib import Path

import yaml
from safetensors.torch import load_file, save_file

from flare.checkpoint.safetensors import FolderCheckpoint
from flare.config.library import HOME
from recipes.qwen38.geometry import Formats, Geometry
from recipes.qwen38.synthetic import synthesize
from recipes.qwen38.weights import StoredWeights

PREFIX = "model.language_model."


def target_of(recipe: str) -> dict:
    return yaml.safe_load((HOME / "recipe" / f"{recipe}.yaml").read_text())["recipe"]["target"]


REAL = Geometry(**target_of("qwen38")["geometry"])
SMALL = Geometry(**(target_of("qwen38")["geometry"] | target_of("qwen38_small")["geometry"]))
PACKED = Formats(experts="nvfp4", mtp_experts="nvfp4", ple="fp8")


def written(folder: Path, formats: Formats = PACKED, geometry: Geometry = SMALL, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    synthesize(geometry, formats, folder, seed)
    return folder


def tensors_of(folder: Path) -> dict:
    """Everything that is stored, by a reader of its own."""
    return {name: tensor for shard in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(shard).items()}


def change(folder: Path, edit) -> None:
    """Rewrite each shard with what `edit(name, tensor)` returns: a tensor, or None to drop it."""
    for shard in sorted(folder.glob("*.safetensors")):
        kept = {name: edit(name, tensor) for name, tensor in load_file(shard).items()}
        rewrite(shard, {name: tensor for name, tensor in kept.items() if tensor is not None})


def add(folder: Path, tensors: dict) -> None:
    """Put further tensors into the first shard."""
    shard = min(folder.glob("*.safetensors"))
    rewrite(shard, load_file(shard) | tensors)


def rewrite(shard: Path, tensors: dict) -> None:
    """Replace a shard; what was loaded from it stays mapped to the old file."""
    scratch = shard.with_suffix(".part")
    save_file(tensors, scratch)
    scratch.replace(shard)


def edit_json(file: Path, edit) -> None:
    """Rewrite a JSON file after `edit(document)` changed it in place."""
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))


def stored(folder: Path, formats: Formats = PACKED, drafter: bool = True, geometry: Geometry = SMALL) -> StoredWeights:
    return StoredWeights(FolderCheckpoint(folder), geometry, formats, drafter)
