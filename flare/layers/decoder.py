"""A dense decoder: embedding, pre-norm attention and MLP layers, final norm, head (the Llama arrangement)."""

from dataclasses import dataclass

from torch import Tensor

from flare.layers.attention import AttentionShape, GroupedQueryAttention
from flare.layers.mlp import GatedMlp
from flare.layers.rows import Hidden, Rows
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.projection import Norm
from flare.ops.short_conv import Boundary
from flare.plan.declarations import Declarations, Weight, together


@dataclass(frozen=True)
class DecoderShape:
    """Geometry of a dense decoder."""

    vocab: int
    layers: int
    attention: AttentionShape
    ffn: int
    rope_base: float
    norm_eps: float
    context: int


class DenseDecoder:
    """The whole target of a Llama-type model. Its feedback is the normalised output, as wide as the hidden state."""

    def __init__(self, shape: DecoderShape, dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self.layers = [
            (
                GroupedQueryAttention(f"layers.{index}", shape.attention, dtype),
                GatedMlp(f"layers.{index}", shape.attention.hidden, shape.ffn, dtype),
            )
            for index in range(shape.layers)
        ]

    @property
    def vocab(self) -> int:
        return self.shape.vocab

    @property
    def feedback_width(self) -> int:
        return self.shape.attention.hidden

    @property
    def output_width(self) -> int:
        return self.shape.attention.hidden

    def declare(self) -> Declarations:
        hidden, vocab = self.shape.attention.hidden, self.shape.vocab
        ends = Declarations(
            weights=(
                Weight("embed", (vocab, hidden), self.dtype),
                Weight("norm", (hidden,), self.dtype),
                # Four bits would cost the head 8 % of its norm, and every law with it.
                Weight("head", (vocab, hidden), self.dtype, linear=True, exact=True),
            )
        )
        return ends + together(self._declare_layer(index) for index in range(self.shape.layers))

    def _declare_layer(self, index: int) -> Declarations:
        attention, mlp = self.layers[index]
        width = (self.shape.attention.hidden,)
        norms = Declarations(
            weights=(
                Weight(f"layers.{index}.attention_norm", width, self.dtype),
                Weight(f"layers.{index}.mlp_norm", width, self.dtype),
            )
        )
        return norms + attention.declare() + mlp.declare()

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.ops, shape = ops, self.shape
        self.table, self.norm, self.vocabulary = (
            storage.weights["embed"],
            storage.weights["norm"],
            storage.linears["head"],
        )
        self.norms = [
            tuple(Norm(storage.weights[f"layers.{index}.{part}_norm"], shape.norm_eps) for part in ("attention", "mlp"))
            for index in range(shape.layers)
        ]
        for attention, mlp in self.layers:
            attention.bind(storage, ops)
            mlp.bind(storage, ops)
        dim = shape.attention.head_dim
        self.rotary = storage.keep(ops.rotary_table(shape.context, dim, shape.rope_base, self.table.dtype))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.ops.embed(self.table, tokens)

    def head(self, output: Tensor) -> Tensor:
        return self.ops.linear(output, self.vocabulary)

    def verify(self, rows: Rows) -> Hidden:
        ops = self.ops
        # Before the embedding: the first layer reads these while the operator just before it may still run.
        rotary = ops.rotary_rows(self.rotary, rows.positions.view(-1))
        residual = self.embed(rows.tokens.view(-1))
        for (attention, mlp), (attention_norm, mlp_norm) in zip(self.layers, self.norms, strict=True):
            attention.verify(residual, attention_norm, rows, rotary)
            mlp(residual, mlp_norm)
        normed = ops.rms_norm(residual, self.norm, self.shape.norm_eps)
        return Hidden(output=normed, feedback=normed)

    prefill = verify

    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        """Nothing to move: every layer's state is paged, and the consumed count publishes it."""
