"""Model card: Qwen3.8-Flash-Next — 48 layers of gated delta rule and sparse attention over four residual streams.

Three layers in four are recurrent (gated delta rule), every fourth is sparse attention; each has a mixture of
experts, and hyperconnections read from and write to the streams. Layer 1 adds hashed n-gram embeddings. The feedback a
drafter absorbs is the residual before the final mixer, all streams of it. See `weights.py` for the stored layout.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from flare.checkpoint.tensors import Checkpoint
from flare.layers.gated_delta import GatedDelta
from flare.layers.hyperconnection import StreamMixer
from flare.layers.ple import PerLayerEmbedding
from flare.layers.rows import Hidden, RoundShape, Rows
from flare.layers.sparse_attention import SparseRotary, sparse_rotary
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.short_conv import Boundary
from flare.plan.declarations import Declarations, RoundBuffer, Weight, together
from recipes.qwen38.geometry import Formats, Geometry
from recipes.qwen38.parts import DecoderLayer, decoder_layer, streams
from recipes.qwen38.synthetic import synthesize
from recipes.qwen38.weights import stored_weights


class Target:
    """The served model; every layer declares its own weights and state."""

    class Config(BaseModel):
        """`recipe.target` beside `type`."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        geometry: Geometry = Field(description="sizes of the model")
        formats: Formats = Field(description="how the quantisable parts are stored")

    def __init__(self, config: Config, dtype: str, rounds: RoundShape) -> None:
        self.geometry, self.formats, self.dtype, self.rounds = config.geometry, config.formats, dtype, rounds
        self.layers: list[DecoderLayer] = [
            decoder_layer(index, config.geometry, config.formats, dtype, rounds)
            for index in range(config.geometry.layers)
        ]
        self.mixer = StreamMixer("hyper_connection_mixer", streams(config.geometry), dtype)

    @property
    def vocab(self) -> int:
        return self.geometry.vocab

    @property
    def feedback_width(self) -> int:
        return self.geometry.residual

    @property
    def output_width(self) -> int:
        return self.geometry.hidden

    def declare(self) -> Declarations:
        table = (self.geometry.vocab, self.geometry.hidden)
        ends = Declarations(
            weights=(
                Weight("embed_tokens.weight", table, self.dtype),
                Weight("lm_head.weight", table, self.dtype, linear=True, exact=True),
            ),
            # The residual of a prompt chunk must survive until the drafter has absorbed it.
            state=(RoundBuffer("residual", (self._most_rows, self.geometry.residual), self.dtype),),
        )
        return ends + self.mixer.declare() + together(layer.declare() for layer in self.layers)

    @property
    def _most_rows(self) -> int:
        return max(self.rounds.chunk, self.rounds.lanes * self.rounds.width)

    def stored(self, checkpoint: Checkpoint) -> Callable[[str], Tensor]:
        return stored_weights(checkpoint, self.geometry, self.formats, drafter=False)

    @staticmethod
    def synthesize(config: Config, folder: Path, seed: int) -> None:
        """Write a seeded checkpoint of these sizes, MTP layer included, into an empty folder."""
        synthesize(config.geometry, config.formats, folder, seed)

    def bind(self, storage: Storage, ops: Operators) -> None:
        geometry = self.geometry
        self.ops, self.table = ops, storage.weights["embed_tokens.weight"]
        self.vocabulary, self.residual = storage.linears["lm_head.weight"], storage.state["residual"]
        self.mixer.bind(storage, ops)
        for layer in self.layers:
            layer.bind(storage, ops)
        dim, base = geometry.rotary_dim, geometry.rope_theta
        self.rotary = storage.keep(ops.rotary_table(geometry.context, dim, base, self.table.dtype))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.ops.embed(self.table, tokens)

    def head(self, output: Tensor) -> Tensor:
        return self.ops.linear(output, self.vocabulary)

    def prefill(self, rows: Rows) -> Hidden:
        return self._run(rows, lambda layer, residual, rotary: layer.prefill(residual, rows, rotary))

    def verify(self, rows: Rows) -> Hidden:
        return self._run(rows, lambda layer, residual, rotary: layer.verify(residual, rows, rotary))

    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        for part in self._stateful():
            part.commit(rows, emitted, boundary)

    def _stateful(self) -> Iterator[GatedDelta | PerLayerEmbedding]:
        """Parts whose candidates must be published; sparse attention's are by the consumed count."""
        for layer in self.layers:
            if isinstance(layer.mixer, GatedDelta):
                yield layer.mixer
            if layer.embedding is not None:
                yield layer.embedding

    def _run(self, rows: Rows, step: Callable[[DecoderLayer, Tensor, SparseRotary], Tensor]) -> Hidden:
        rotary = sparse_rotary(self.ops, self.rotary, rows.positions)
        streams_RD = self.embed(rows.tokens.view(-1)).repeat(1, self.geometry.streams)
        for layer in self.layers:
            streams_RD = step(layer, streams_RD, rotary)
        feedback = self.residual[: len(streams_RD)].copy_(streams_RD)
        return Hidden(output=self.mixer.mix(feedback), feedback=feedback)
