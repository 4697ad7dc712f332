"""Model card: SmolLM2-135M-Instruct, and any checkpoint of the Llama architecture by its geometry.

Dense decoder, grouped-query attention, RoPE, RMSNorm, gated SiLU MLP, tied or separate head. Apache-2.0, trained by
Hugging Face. Stored as GGUF (Q4_1 and Q8_0) or as a Hugging Face folder; see `weights.py` for the names.
"""

from collections.abc import Callable
from math import isclose

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.errors import CheckpointError
from flare.layers.attention import AttentionShape
from flare.layers.decoder import DecoderShape, DenseDecoder
from flare.layers.rows import RoundShape
from recipes.smollm2.facts import geometry_of
from recipes.smollm2.weights import stored_weights


class Geometry(BaseModel):
    """`recipe.target.geometry`: the sizes of a Llama-type decoder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(ge=1, description="width of the residual stream")
    layers: int = Field(ge=1, description="decoder layers")
    query_heads: int = Field(ge=1, description="query heads")
    kv_heads: int = Field(ge=1, description="key and value heads; divides the query heads")
    head_dim: int = Field(ge=2, multiple_of=2, description="width of one head")
    ffn: int = Field(ge=1, description="inner width of the gated MLP")
    vocab: int = Field(ge=2, description="token ids")
    rope_base: float = Field(gt=0, description="base of the rotary frequencies")
    norm_eps: float = Field(gt=0, description="epsilon of RMSNorm")
    tied: bool = Field(description="whether the head is the embedding")
    context: int = Field(ge=1, description="tokens the model was made for")


class Target(DenseDecoder):
    """A dense decoder with this recipe's geometry and stored names."""

    class Config(BaseModel):
        """`recipe.target` beside `type`."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        geometry: Geometry = Field(description="sizes of the model")

    def __init__(self, config: Config, dtype: str, rounds: RoundShape) -> None:  # noqa: ARG002  no candidate buffers
        self.geometry = geometry = config.geometry
        heads = AttentionShape(geometry.hidden, geometry.query_heads, geometry.kv_heads, geometry.head_dim)
        shape = DecoderShape(
            vocab=geometry.vocab,
            layers=geometry.layers,
            attention=heads,
            ffn=geometry.ffn,
            rope_base=geometry.rope_base,
            norm_eps=geometry.norm_eps,
            context=geometry.context,
        )
        super().__init__(shape, dtype)

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        """From declared weight names to tensors, once the checkpoint's headers agree with the geometry.

        Raises:
            CheckpointError: the overrides that would fit this checkpoint, or one report of all its headers that differ.
        """
        found, declared = geometry_of(checkpoint), self.geometry.model_dump()
        differing = [
            f"recipe.target.geometry.{key}={found[key]}"
            for key in declared
            if key != "context" and not isclose(found[key], declared[key], rel_tol=1e-6)
        ]
        if differing:
            raise CheckpointError(
                f"{checkpoint.origin} holds another model than the recipe declares; to serve it: {' '.join(differing)}"
            )
        read = stored_weights(checkpoint, self.geometry)
        return lambda name: read("embed" if name == "head" and self.geometry.tied else name)
