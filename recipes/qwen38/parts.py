"""From the recipe's geometry to layers: what stands in a decoder layer, and under which names."""

from dataclasses import dataclass

from torch import Tensor

from flare.layers.gated_delta import GatedDelta, GatedDeltaShape
from flare.layers.hyperconnection import HyperConnection, StreamShape
from flare.layers.moe import MoeShape, SparseMoe
from flare.layers.ple import PerLayerEmbedding, PleShape
from flare.layers.rows import RoundShape, Rows
from flare.layers.sparse_attention import SparseAttention, SparseAttentionShape, SparseRotary
from flare.layers.storage import Storage
from flare.ops.ngram.geometry import NgramShape
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations, together
from recipes.qwen38.geometry import ExpertFormat, Formats, Geometry


@dataclass
class DecoderLayer:
    """Read from the streams, mix tokens, write; read, think, write. Layer 1 adds n-gram embeddings before."""

    embedding: PerLayerEmbedding | None
    attention_streams: HyperConnection
    mixer: GatedDelta | SparseAttention
    mlp_streams: HyperConnection
    experts: SparseMoe

    @property
    def parts(self) -> tuple[PerLayerEmbedding | HyperConnection | GatedDelta | SparseAttention | SparseMoe, ...]:
        """All parts, in the order they run."""
        own = (self.attention_streams, self.mixer, self.mlp_streams, self.experts)
        return own if self.embedding is None else (self.embedding, *own)

    def declare(self) -> Declarations:
        return together(part.declare() for part in self.parts)

    def bind(self, storage: Storage, ops: Operators) -> None:
        for part in self.parts:
            part.bind(storage, ops)

    def verify(self, residual: Tensor, rows: Rows, rotary: SparseRotary) -> Tensor:
        """Candidate rows: residual [R, D] → residual [R, D]."""
        if self.embedding is not None:
            residual = self.embedding.verify(residual, rows)
        x, injection = self.attention_streams.read(residual)
        mixed = self.mixer.verify(x, rows) if isinstance(self.mixer, GatedDelta) else self.mixer.verify(x, rows, rotary)
        return self.think(self.attention_streams.write(residual, mixed, injection))

    def prefill(self, residual: Tensor, rows: Rows, rotary: SparseRotary) -> Tensor:
        """Rows of a prompt chunk, committed as they pass."""
        if self.embedding is not None:
            residual = self.embedding.prefill(residual, rows)
        x, injection = self.attention_streams.read(residual)
        mixed = (
            self.mixer.prefill(x, rows) if isinstance(self.mixer, GatedDelta) else self.mixer.prefill(x, rows, rotary)
        )
        return self.think(self.attention_streams.write(residual, mixed, injection))

    def think(self, residual: Tensor) -> Tensor:
        """The second half of the layer, which has no state."""
        x, injection = self.mlp_streams.read(residual)
        return self.mlp_streams.write(residual, self.experts(x), injection)


def decoder_layer(index: int, geometry: Geometry, formats: Formats, dtype: str, rounds: RoundShape) -> DecoderLayer:
    """Layer `index`, counted from zero."""
    name = f"layers.{index}"
    mixer: GatedDelta | SparseAttention
    if geometry.is_full(index):
        mixer = SparseAttention(f"{name}.self_attn", attention(geometry), dtype)
    else:
        mixer = GatedDelta(f"{name}.linear_attn", delta(geometry), dtype, rounds)
    embedding = None
    if index + 1 in geometry.ple_layers:
        embedding = PerLayerEmbedding(f"{name}.ple", ngrams(geometry, formats, index + 1), dtype, rounds)
    return DecoderLayer(
        embedding=embedding,
        attention_streams=HyperConnection(f"{name}.attn_hyper_connection", streams(geometry), dtype),
        mixer=mixer,
        mlp_streams=HyperConnection(f"{name}.mlp_hyper_connection", streams(geometry), dtype),
        experts=SparseMoe(f"{name}.mlp", experts(geometry, formats.experts), dtype),
    )


def streams(geometry: Geometry) -> StreamShape:
    """The residual streams."""
    return StreamShape(geometry.hidden, geometry.streams, geometry.lowrank, geometry.norm_eps)


def attention(geometry: Geometry) -> SparseAttentionShape:
    """Sparse attention of a target layer and of the MTP layer alike."""
    return SparseAttentionShape(
        hidden=geometry.hidden,
        query_heads=geometry.query_heads,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        index_heads=geometry.indexer_heads,
        index_dim=geometry.index_dim,
        budget_tokens=geometry.index_budget,
        norm_eps=geometry.norm_eps,
    )


def delta(geometry: Geometry) -> GatedDeltaShape:
    """The gated delta rule."""
    return GatedDeltaShape(
        hidden=geometry.hidden,
        key_heads=geometry.linear_key_heads,
        value_heads=geometry.linear_value_heads,
        key_dim=geometry.linear_key_dim,
        value_dim=geometry.linear_value_dim,
        taps=geometry.conv_kernel,
        norm_eps=geometry.norm_eps,
        gate=geometry.output_gate,
    )


def experts(geometry: Geometry, stored: ExpertFormat) -> MoeShape:
    """The mixture of experts; the MTP layer's may be stored in another format."""
    return MoeShape(
        hidden=geometry.hidden,
        experts=geometry.experts,
        top_k=geometry.experts_per_token,
        ffn=geometry.expert_ffn,
        shared_ffn=geometry.shared_ffn,
        expert_format=stored,
    )


def ngrams(geometry: Geometry, formats: Formats, number: int) -> PleShape:
    """N-gram embeddings of layer `number`, counted from one."""
    return PleShape(
        hidden=geometry.hidden,
        streams=geometry.streams,
        embed=geometry.ple_embed_dim,
        ngram=NgramShape(
            vocab=geometry.vocab,
            order=geometry.ngram_size,
            heads_per_order=geometry.heads_per_ngram,
            base=geometry.ngram_vocab_base,
            divisor=geometry.ngram_row_multiple,
            eos=geometry.eos_id,
            seed=geometry.seed,
            ordinal=geometry.ple_layers.index(number),
        ),
        kernel=geometry.ple_conv_kernel,
        eps=geometry.norm_eps,
        table_format=formats.ple,
    )
