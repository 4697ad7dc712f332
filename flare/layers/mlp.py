"""Gated MLP: x += down(silu(gate(norm(x))) · up(norm(x))), gate and up fused into one linear."""

from torch import Tensor

from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.projection import Norm
from flare.plan.declarations import Declarations, Weight


class GatedMlp:
    """A stateless layer: its candidates need no commit."""

    def __init__(self, name: str, hidden: int, ffn: int, dtype: str) -> None:
        self.name, self.hidden, self.ffn, self.dtype = name, hidden, ffn, dtype

    def declare(self) -> Declarations:
        return Declarations(
            weights=(
                Weight(f"{self.name}.gate_up", (2 * self.ffn, self.hidden), self.dtype, linear=True),
                Weight(f"{self.name}.down", (self.hidden, self.ffn), self.dtype, linear=True),
            )
        )

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.ops = ops
        self.gate_up, self.down = storage.linears[f"{self.name}.gate_up"], storage.linears[f"{self.name}.down"]

    def __call__(self, residual_RH: Tensor, norm: Norm) -> None:
        """Add the block's output to the residual stream [R, H] in place; `norm` norms its input."""
        gated = self.ops.norm_gate(residual_RH, norm, self.gate_up)
        self.ops.add_linear(residual_RH, gated, self.down)
