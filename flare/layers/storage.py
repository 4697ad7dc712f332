"""Storage: what a part receives when it is bound — its weights, packed or plain, and its state tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from flare.ops.linear import PackedLinear


@dataclass(frozen=True)
class Storage:
    """Everything allocated for a core, under the declared names.

    Attributes:
        weights: plain tensors; linears: packed by the device's linear operator; state: the arena's tensors.
        tables: what parts computed for themselves when they were bound.
    """

    weights: Mapping[str, Tensor]
    linears: Mapping[str, PackedLinear]
    state: Mapping[str, Tensor]
    tables: list[Tensor] = field(default_factory=list)

    def keep(self, table: Tensor) -> Tensor:
        """The table, which from now on is freed with everything else."""
        self.tables.append(table)
        return table

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that holds bytes of this core."""
        yield from self.weights.values()
        yield from self.state.values()
        yield from self.tables
        for packed in self.linears.values():
            yield packed.payload
            if packed.scales is not None:
                yield packed.scales
