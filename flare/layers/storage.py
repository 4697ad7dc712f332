"""Storage: what a part receives when it is bound — its weights, packed or plain, and its state tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from flare.ops.linear import PackedLinear


@dataclass(frozen=True)
class Storage:
    """Everything allocated for a core, under the declared names.

    Attributes:
        weights: plain tensors; linears: packed by the device's linear operator; state: the arena's tensors.
    """

    weights: Mapping[str, Tensor]
    linears: Mapping[str, PackedLinear]
    state: Mapping[str, Tensor]

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that holds bytes of this core."""
        yield from self.weights.values()
        yield from self.state.values()
        for packed in self.linears.values():
            yield packed.payload
            if packed.scales is not None:
                yield packed.scales
