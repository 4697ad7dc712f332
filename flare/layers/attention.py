"""Grouped-query attention over paged keys and values."""

from dataclasses import dataclass

from torch import Tensor

from flare.layers.rows import Rows
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.projection import Norm, Places
from flare.plan.declarations import Declarations, PagedState, Weight


@dataclass(frozen=True)
class AttentionShape:
    """Heads of one attention layer."""

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int


class GroupedQueryAttention:
    """Attention whose candidates are written beyond the committed length.

    A rejected row stays physically in a private page and logically outside every length, so commit has nothing to
    move: the request's consumed count publishes the prefix.
    """

    def __init__(self, name: str, shape: AttentionShape, dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype

    def declare(self) -> Declarations:
        shape = self.shape
        fused = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim
        entry = (shape.kv_heads, shape.head_dim)
        return Declarations(
            weights=(
                Weight(f"{self.name}.qkv", (fused, shape.hidden), self.dtype, linear=True),
                Weight(
                    f"{self.name}.output", (shape.hidden, shape.query_heads * shape.head_dim), self.dtype, linear=True
                ),
            ),
            state=(
                PagedState(f"{self.name}.keys", entry, self.dtype, heads_outermost=True),
                PagedState(f"{self.name}.values", entry, self.dtype, heads_outermost=True),
            ),
        )

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.ops = ops
        self.qkv, self.output = storage.linears[f"{self.name}.qkv"], storage.linears[f"{self.name}.output"]
        self.keys, self.values = storage.state[f"{self.name}.keys"], storage.state[f"{self.name}.values"]

    def verify(self, residual_RH: Tensor, norm: Norm, rows: Rows, rotary: tuple[Tensor, Tensor]) -> None:
        """Attend from every active row to the committed prefix and the rows before it; adds to the residual in place.

        Args:
            residual_RH: the residual stream, normed by `norm` on the way in.
            rotary: cosines and sines of the rows' positions, shared by all layers.
        """
        ops, lanes, width = self.ops, *rows.tokens.shape
        query = ops.project_heads(residual_RH, norm, self.qkv, rotary, Places(self.keys, self.values, rows.write_index))
        attended = ops.paged_attention(
            query.view(lanes, width, *query.shape[1:]),
            self.keys,
            self.values,
            rows.page_tables,
            rows.lengths,
            rows.counts,
            self.shape.head_dim**-0.5,
        )
        ops.add_linear(residual_RH, attended.view(lanes * width, -1), self.output)

    prefill = verify
