"""A target and a drafter that are nothing but their configuration: no torch, no weights."""

from pydantic import BaseModel


class Geometry(BaseModel):
    """The sizes that smollm2.yaml names."""

    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float
    norm_eps: float
    tied: bool
    context: int


class Target:
    """Takes a geometry."""

    class Config(BaseModel):
        """Keys beside recipe.target.type."""

        geometry: Geometry


class Drafter:
    """Takes a depth."""

    class Config(BaseModel):
        """Keys beside recipe.drafter.type."""

        max_depth: int


class Bare:
    """Lacks the Config that a part must bring."""
