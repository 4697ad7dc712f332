"""PLE: an embedding of each row's last tokens, looked up by hash, gated per stream, convolved, added to the residual.

Shapes: B lanes, W rows per lane, R = B · W, S streams, H hidden, D = S · H. The hash of a row reads the lane's
committed tokens and the candidates before it; the convolution likewise. Source: Qwen4-exp's PLE.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flare.layers.rows import RoundShape, Rows
from flare.layers.storage import Storage
from flare.ops.formats.fp8 import Fp8
from flare.ops.formats.nvfp4 import BLOCK, Nvfp4
from flare.ops.ngram import NgramHash, NgramTable
from flare.ops.ngram.geometry import NgramShape, check_geometry, ngram_geometry
from flare.ops.operators import Operators
from flare.ops.short_conv import Boundary
from flare.plan.declarations import Declarations, RoundBuffer, SlotState, Weight


@dataclass(frozen=True)
class PleShape:
    """Geometry of the layer.

    Attributes:
        embed: width of the looked-up embedding, all heads together; kernel: taps of the convolution, `ngram.order`
            tokens apart.
        table_format: how the table is stored.
    """

    hidden: int
    streams: int
    embed: int
    ngram: NgramShape
    kernel: int
    eps: float
    table_format: Literal["dense", "fp8", "nvfp4"]

    @property
    def width(self) -> int:
        """D, elements of one row's residual."""
        return self.streams * self.hidden

    @property
    def history(self) -> int:
        """Convolution inputs before a row that its taps reach."""
        return (self.kernel - 1) * self.ngram.order


class PerLayerEmbedding:
    """The layer `{name}` (`layers.1.ple`).

    State: `{name}.context`, the last `order − 1` token ids, and `{name}.conv`, the last normed convolution inputs, both
    oldest first. Entries for positions before 0 hold what the slot's last request left; the committed length says which
    those are, and they read as EOS and as zeros.
    """

    def __init__(self, name: str, shape: PleShape, dtype: str, rounds: RoundShape) -> None:
        self.name, self.shape, self.dtype, self.rounds = name, shape, dtype, rounds
        self.geometry = ngram_geometry(shape.ngram)

    def declare(self) -> Declarations:
        shape, name, dtype, width = self.shape, self.name, self.dtype, self.shape.width
        candidates = (self.rounds.lanes, self.rounds.width, width)
        return Declarations(
            weights=(
                Weight(f"{name}.key_proj.weight", (width, shape.embed), dtype, linear=True),
                Weight(f"{name}.value_proj.weight", (shape.hidden, shape.embed), dtype, linear=True),
                Weight(f"{name}.norm_key.weight", (width,), dtype),
                Weight(f"{name}.norm_query.weight", (width,), dtype),
                Weight(f"{name}.norm_conv.weight", (width,), dtype),
                Weight(f"{name}.conv1d.weight", (width, 1, shape.kernel), dtype),
                *self._declare_table(),
            ),
            state=(
                SlotState(f"{name}.context", (shape.ngram.order - 1,), "int64"),
                SlotState(f"{name}.conv", (shape.history, width), dtype),
                RoundBuffer(f"{name}.candidates", candidates, dtype),
            ),
        )

    def _declare_table(self) -> Iterator[Weight]:
        ngram, embedding = self.shape.ngram, f"{self.name}.ple_embedding"
        yield Weight(f"{embedding}.layer_multipliers", (ngram.order,), "int64")
        yield Weight(f"{embedding}.ngram_heads_vocab_sizes", (ngram.heads,), "int64")
        yield Weight(f"{embedding}.ngram_heads_offsets", (ngram.heads,), "int64")
        rows, columns, table = self.geometry.rows, self.shape.embed // ngram.heads, f"{embedding}.ngram_embedding"
        match self.shape.table_format:
            case "dense":
                yield Weight(f"{table}.weight", (rows, columns), self.dtype)
            case "fp8":
                yield Weight(f"{table}.weight", (rows, columns), "float8_e4m3fn")
                yield Weight(f"{table}.weight_scale", (1,), "bfloat16")
            case "nvfp4":
                yield Weight(f"{table}.weight", (rows, columns // 2), "uint8")
                yield Weight(f"{table}.weight_scale", (rows, columns // BLOCK), "float8_e4m3fn")
                yield Weight(f"{table}.weight_scale_2", (1,), "float32")

    def bind(self, storage: Storage, ops: Operators) -> None:
        """Take the storage.

        Raises:
            CheckpointError: the stored hash differs from the one this geometry implies.
        """
        self.ops, name, weights = ops, self.name, storage.weights
        self.key, self.value = storage.linears[f"{name}.key_proj.weight"], storage.linears[f"{name}.value_proj.weight"]
        self.norm_key, self.norm_query, self.norm_conv = (
            weights[f"{name}.norm_{of}.weight"] for of in ("key", "query", "conv")
        )
        self.taps = weights[f"{name}.conv1d.weight"].squeeze(1)
        self.context, self.conv = storage.state[f"{name}.context"], storage.state[f"{name}.conv"]
        self.candidates = storage.state[f"{name}.candidates"]
        self.hashing = self._stored_hash(storage)
        self.table = self._stored_table(storage)
        self.context_ages = torch.arange(self.context.shape[1], device=self.context.device)
        self.conv_ages = torch.arange(self.conv.shape[1], device=self.conv.device)

    def _stored_hash(self, storage: Storage) -> NgramHash:
        embedding = f"{self.name}.ple_embedding"
        names = [f"{embedding}.{of}" for of in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")]
        check_geometry(self.geometry, {name: storage.weights[name].tolist() for name in names})
        multipliers, sizes, offsets = (storage.weights[name] for name in names)
        return NgramHash(multipliers, sizes, offsets, self.shape.ngram.eos)

    def _stored_table(self, storage: Storage) -> NgramTable:
        weights, table = storage.weights, f"{self.name}.ple_embedding.ngram_embedding"
        rows = weights[f"{table}.weight"]
        match self.shape.table_format:
            case "fp8":
                return NgramTable(Fp8(rows, weights[f"{table}.weight_scale"]))
            case "nvfp4":
                return NgramTable(Nvfp4(rows, weights[f"{table}.weight_scale"], weights[f"{table}.weight_scale_2"]))
        return NgramTable(rows)

    def verify(self, residual: Tensor, rows: Rows) -> Tensor:
        """Residual [R, D] before the layer → after it; the rows' convolution inputs stay as candidates."""
        moved, normed = self._forward(residual, rows)
        lanes, width = rows.tokens.shape
        self.candidates[:lanes, :width] = normed
        return moved

    def prefill(self, residual: Tensor, rows: Rows) -> Tensor:
        """Residual [R, D] before the layer → after it; the active rows are committed."""
        moved, normed = self._forward(residual, rows)
        self._publish(rows, rows.counts, normed, None)
        return moved

    def commit(self, rows: Rows, emitted: Tensor, boundary: Boundary | None = None) -> None:
        """Shift both histories by the first `emitted` [B] rows of each lane; also write those of a boundary."""
        lanes, width = rows.tokens.shape
        self._publish(rows, emitted, self.candidates[:lanes, :width], boundary)

    def _forward(self, residual: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """The residual after the layer [R, D], and the normed convolution inputs [B, W, D]."""
        ops, shape = self.ops, self.shape
        context = torch.where(self._known(self.context_ages, rows.lengths), self.context[rows.slots], self.hashing.eos)
        hashed = ops.ngram_rows(torch.cat((context, rows.tokens), dim=1), self.hashing)
        embedding = ops.ngram_lookup(self.table, hashed, residual.dtype)
        key = ops.zero_centred_norm(ops.linear(embedding, self.key), self.norm_key, shape.eps, shape.streams)
        query = ops.zero_centred_norm(residual, self.norm_query, shape.eps, shape.streams)
        gated = ops.gate_streams(key, query, ops.linear(embedding, self.value))
        normed = ops.zero_centred_norm(gated, self.norm_conv, shape.eps, shape.streams)
        normed, gated = normed.view(*rows.tokens.shape, -1), gated.view(*rows.tokens.shape, -1)
        before = torch.where(self._known(self.conv_ages, rows.lengths)[..., None], self.conv[rows.slots], 0)
        delta = ops.dilated_conv(gated, torch.cat((before, normed), dim=1), self.taps, shape.ngram.order)
        return residual + delta.view(residual.shape), normed

    def _known(self, ages: Tensor, lengths: Tensor) -> Tensor:
        """[B, K] bool: which entries of a history, oldest first, are at positions of this request."""
        return lengths[:, None] + ages >= ages.shape[0]

    def _publish(self, rows: Rows, taken: Tensor, normed: Tensor, boundary: Boundary | None) -> None:
        tokens = torch.cat((self.context[rows.slots], rows.tokens), dim=1)
        inputs = torch.cat((self.conv[rows.slots], normed), dim=1)
        if boundary is not None:
            reached = (boundary.counts >= 1) & (boundary.counts <= taken)
            self._write(boundary.slots, boundary.counts.where(reached, 0), tokens, inputs, reached)
        self._write(rows.slots, taken, tokens, inputs, None)

    def _write(self, slots: Tensor, taken: Tensor, tokens: Tensor, inputs: Tensor, reached: Tensor | None) -> None:
        """Histories as of `taken` [B] rows into slots [B], where they are reached."""
        context = tokens.gather(1, taken[:, None] + self.context_ages)
        conv = torch.take_along_dim(inputs, (taken[:, None] + self.conv_ages)[..., None], dim=1)
        if reached is not None:
            context = context.where(reached[:, None], self.context[slots])
            conv = conv.where(reached[:, None, None], self.conv[slots])
        self.context.index_copy_(0, slots, context)
        self.conv.index_copy_(0, slots, conv)
