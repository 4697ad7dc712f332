"""Hyperconnections: several residual streams, read through a gated mixture and written by a weight per stream.

Shapes: R rows, S streams, H hidden, D = S · H (stream-major). Source: Qwen4-exp's gated residual.
"""

from dataclasses import dataclass

from torch import Tensor

from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations, Weight


@dataclass(frozen=True)
class StreamShape:
    """Geometry of the streams: `rank` is the width of the bottleneck that computes the gates."""

    hidden: int
    streams: int
    rank: int
    eps: float

    @property
    def width(self) -> int:
        """D, elements of one row's residual."""
        return self.streams * self.hidden


class StreamMixer:
    """Collapses the streams into one hidden state; what stands before the head. Stateless."""

    def __init__(self, name: str, shape: StreamShape, dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype

    def declare(self) -> Declarations:
        width, rank = self.shape.width, self.shape.rank
        return Declarations(
            weights=(
                Weight(f"{self.name}.hc_norm.weight", (width,), self.dtype),
                Weight(f"{self.name}.input_mix_weight_down.weight", (rank, width), self.dtype, linear=True),
                Weight(f"{self.name}.input_mix_weight_up.weight", (width, rank), self.dtype, linear=True),
            )
        )

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.ops = ops
        self.norm = storage.weights[f"{self.name}.hc_norm.weight"]
        self.down = storage.linears[f"{self.name}.input_mix_weight_down.weight"]
        self.up = storage.linears[f"{self.name}.input_mix_weight_up.weight"]

    def mix(self, residual: Tensor) -> Tensor:
        """Residual [R, D] → [R, H]."""
        return self._mix(self._normed(residual))

    def _normed(self, residual: Tensor) -> Tensor:
        return self.ops.zero_centred_norm(residual, self.norm, self.shape.eps, self.shape.streams)

    def _mix(self, normed: Tensor) -> Tensor:
        ops, streams = self.ops, self.shape.streams
        gate = ops.linear(ops.scaled_silu(ops.linear(normed, self.down), streams), self.up)
        return ops.mix_streams(normed, gate, streams)


class HyperConnection(StreamMixer):
    """What stands around one block: `read` its input from the streams, `write` its output back to them."""

    def declare(self) -> Declarations:
        shape = (self.shape.streams, self.shape.width)
        # A handful of outputs: packing it would save nothing and could refuse the shape.
        inject = Weight(f"{self.name}.block_inject_weight.weight", shape, self.dtype, linear=True, exact=True)
        return super().declare() + Declarations(weights=(inject,))

    def bind(self, storage: Storage, ops: Operators) -> None:
        super().bind(storage, ops)
        self.inject = storage.linears[f"{self.name}.block_inject_weight.weight"]

    def read(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Residual [R, D] → block input [R, H] and injection logits [R, S] for `write`."""
        normed = self._normed(residual)
        return self._mix(normed), self.ops.linear(normed, self.inject)

    def write(self, residual: Tensor, y: Tensor, injection: Tensor) -> Tensor:
        """Residual [R, D] plus the block's output y [R, H], weighted by stream; a new tensor [R, D]."""
        return self.ops.inject_streams(residual, y, injection)
