"""`recipe.target.geometry` and `recipe.target.formats`: the sizes of a Qwen3.8-Flash-Next model and its MTP layer.

Names follow config.json's meaning, not its spelling; `facts.py` holds the spelling.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flare.ops.ngram.geometry import NgramGeometry, NgramShape, ngram_geometry

ExpertFormat = Literal["nvfp4", "dense"]
TableFormat = Literal["dense", "fp8", "nvfp4"]


class Formats(BaseModel):
    """How the quantisable parts are kept in memory; a checkpoint stored in another way is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experts: ExpertFormat = Field(description="routed experts of the target; dense is in the model's dtype")
    mtp_experts: ExpertFormat = Field(description="routed experts of the MTP layer")
    ple: TableFormat = Field(description="the n-gram embedding table")


class Geometry(BaseModel):
    """Everything that fixes a shape, a hash or an angle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(ge=16, multiple_of=16, description="width of one residual stream")
    layers: int = Field(ge=1, description="decoder layers")
    full_attention_interval: int = Field(ge=1, description="every n-th layer is QSA, the others are gated delta rule")
    query_heads: int = Field(ge=1, description="QSA query heads")
    kv_heads: int = Field(ge=1, description="QSA key and value heads; divides the query heads")
    head_dim: int = Field(ge=2, multiple_of=2, description="width of one QSA head")
    rotary_dim: int = Field(
        ge=2, multiple_of=2, description="leading dimensions of a head, and of an index head, that turn"
    )
    rope_theta: float = Field(gt=0, description="base of the rotary frequencies")
    linear_key_heads: int = Field(ge=1, description="gated-delta-rule key heads")
    linear_value_heads: int = Field(ge=1, description="gated-delta-rule value heads; a multiple of the key heads")
    linear_key_dim: int = Field(ge=1, description="width of one gated-delta-rule key head")
    linear_value_dim: int = Field(ge=1, description="width of one gated-delta-rule value head")
    conv_kernel: int = Field(ge=2, description="taps of the gated-delta-rule short convolution")
    output_gate: Literal["sigmoid", "silu"] = Field(description="gate on the gated-delta-rule output")
    experts: int = Field(ge=1, description="routed experts of each layer")
    experts_per_token: int = Field(ge=1, description="routed experts one token uses")
    expert_ffn: int = Field(ge=16, multiple_of=16, description="inner width of a routed expert")
    shared_ffn: int = Field(ge=1, description="inner width of the shared expert")
    streams: int = Field(ge=1, description="residual streams")
    lowrank: int = Field(ge=1, description="rank of the stream mixing gate")
    indexer_heads: int = Field(ge=1, description="query heads of the QSA token selector")
    index_dim: int = Field(ge=2, multiple_of=2, description="width of one selector head")
    index_budget: int = Field(ge=1, description="tokens selected beside the open tail")
    compress_ratio: Literal[4] = Field(description="tokens of one selector group; divides the budget")
    ple_layers: tuple[int, ...] = Field(description="layers with n-gram embeddings, counted from one, increasing")
    ple_embed_dim: int = Field(ge=1, description="width of one token's n-gram embedding")
    ple_conv_kernel: int = Field(ge=2, description="taps of the n-gram convolution; its dilation is ngram_size")
    ngram_size: int = Field(ge=2, description="longest n-gram, in tokens; orders 2 to this one are hashed")
    heads_per_ngram: int = Field(ge=1, description="hash tables of each order")
    ngram_vocab_base: int = Field(ge=2, description="table sizes are the primes from here on")
    ngram_row_multiple: int = Field(ge=1, description="table rows are padded to a multiple of this")
    ngram_shards: int = Field(ge=1, description="stored parts of the table")
    seed: int = Field(ge=0, description="seed of the n-gram hash multipliers")
    eos_id: int = Field(ge=0, description="token that cuts n-grams")
    norm_eps: float = Field(gt=0, description="epsilon of every norm")
    vocab: int = Field(ge=2, description="token ids")
    context: int = Field(ge=1, description="tokens the model was made for")

    @model_validator(mode="after")
    def heads_divide(self) -> "Geometry":
        """Grouped heads share evenly."""
        self._divides("query_heads", "kv_heads")
        self._divides("linear_value_heads", "linear_key_heads")
        self._divides("index_budget", "compress_ratio")
        if self.ple_embed_dim % self.ngram_heads:
            raise ValueError(
                f"ple_embed_dim={self.ple_embed_dim} is no multiple of the {self.ngram_heads} n-gram heads"
            )
        return self

    @model_validator(mode="after")
    def parts_fit_the_whole(self) -> "Geometry":
        """Nothing selects or turns more than there is."""
        pairs = (("rotary_dim", "head_dim"), ("rotary_dim", "index_dim"), ("experts_per_token", "experts"))
        for part, whole in pairs:
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(f"{part}={getattr(self, part)}, but {whole}={getattr(self, whole)} has no more")
        if self.eos_id >= self.vocab:
            raise ValueError(f"eos_id={self.eos_id}, but vocab={self.vocab} ends before it")
        return self

    @model_validator(mode="after")
    def ngrams_enter_recurrent_layers(self) -> "Geometry":
        """N-gram embeddings exist on gated-delta-rule layers only."""
        if list(self.ple_layers) != sorted(set(self.ple_layers)):
            raise ValueError(f"ple_layers={list(self.ple_layers)} must increase")
        for number in self.ple_layers:
            if not 1 <= number <= self.layers or self.is_full(number - 1):
                raise ValueError(f"ple_layers has {number}, which is no gated-delta-rule layer of 1..{self.layers}")
        return self

    def _divides(self, whole: str, part: str) -> None:
        if getattr(self, whole) % getattr(self, part):
            raise ValueError(f"{whole}={getattr(self, whole)} is no multiple of {part}={getattr(self, part)}")

    def is_full(self, layer: int) -> bool:
        """Whether layer `layer`, counted from zero, is QSA."""
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def residual(self) -> int:
        """Width of all streams together."""
        return self.streams * self.hidden

    @property
    def ngram_heads(self) -> int:
        """Table rows one token looks up."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ngram_dim(self) -> int:
        """Width of one table row."""
        return self.ple_embed_dim // self.ngram_heads

    def ngrams(self, ordinal: int) -> NgramGeometry:
        """Hash constants and table rows of the layer with this rank in `ple_layers`."""
        shape = NgramShape(
            vocab=self.vocab,
            order=self.ngram_size,
            heads_per_order=self.heads_per_ngram,
            base=self.ngram_vocab_base,
            divisor=self.ngram_row_multiple,
            eos=self.eos_id,
            seed=self.seed,
            ordinal=ordinal,
        )
        return ngram_geometry(shape)

    def shard_rows(self, ordinal: int) -> tuple[int, ...]:
        """Rows of each stored part of that layer's table: all equal but the last, which takes what is left."""
        rows = self.ngrams(ordinal).rows
        each = -(-rows // self.ngram_shards)
        return tuple(min(each, rows - first) for first in range(0, rows, each))
