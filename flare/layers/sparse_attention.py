"""Sparse attention: a selector picks groups of four past tokens for every row, gated attention sees only those.

Shapes: B lanes, W rows per lane, R = B × W, H hidden. The same layer serves a target and a recursive drafter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.layers.rows import Rows
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.sparse_attention import GROUP_TOKENS, IndexStream, Interval
from flare.plan.declarations import Declarations, PagedState, RingState, Weight

DRAFT_TAIL_TOKENS = 7
"""How far after its recording a draft selection may be used: the longest chain of drafts."""


@dataclass(frozen=True)
class SparseAttentionShape:
    """Heads of one sparse attention layer and of its selector.

    Attributes:
        budget_tokens: tokens in selected groups, a multiple of four; the open tail comes on top.
        index_dim: width of an index key, a multiple of four, so that four tokens of a page hold one.
        norm_eps: of the four zero-centred norms.
    """

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    index_heads: int
    index_dim: int
    budget_tokens: int
    norm_eps: float


@dataclass(frozen=True)
class SparseRotary:
    """Rotary rows of a round, shared by its layers: of the R rows, and of the starts of the groups they can close."""

    rows: tuple[Tensor, Tensor]
    groups: tuple[Tensor, Tensor]


def sparse_rotary(ops: Operators, table: Tensor, positions: Tensor) -> SparseRotary:
    """Look a round's positions [B, W] up in a table as wide as the rotary part of a head.

    Rows N..N + W − 1 close no group but ⌊N / 4⌋ + i, i < ⌈W / 4⌉, which begin at 4⌊(N + 4i) / 4⌋.
    """
    starts = positions[:, ::GROUP_TOKENS] // GROUP_TOKENS * GROUP_TOKENS
    return SparseRotary(ops.rotary_rows(table, positions.flatten()), ops.rotary_rows(table, starts.flatten()))


@dataclass(frozen=True)
class DraftSelection:
    """What the first draft step selected, handed from step to step of one proposal and kept nowhere else.

    Attributes:
        selected: [B, budget + 3] int32 selected positions; anchors: [B] int64 positions of the rows that selected;
        slots: [B] int64 requests they belong to.
    """

    selected: Tensor
    anchors: Tensor
    slots: Tensor


class SparseAttention:
    """Grouped-query attention over positions a weight-free selector picks, with a sigmoid gate on its output.

    Candidates go to places nothing committed looks at, so that commit has nothing to move:
      * keys, values and keys of groups: private pages beyond the committed length. A group that rejected rows completed
        is beyond it too, and computed anew when real tokens complete it.
      * raw index keys: a ring with room for the open group before the widest round. A later interval reads only
        positions before its own start, and the tag says whether an entry is of that position.
    Rejected rows thus stay in storage and outside every logical length.
    """

    def __init__(self, name: str, shape: SparseAttentionShape, dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype

    def declare(self) -> Declarations:
        name, shape, dtype = self.name, self.shape, self.dtype
        entry = (shape.kv_heads, shape.head_dim)
        heads = {
            "q_proj": 2 * shape.query_heads * shape.head_dim,
            "k_proj": shape.kv_heads * shape.head_dim,
            "v_proj": shape.kv_heads * shape.head_dim,
            "indexer.index_qk_proj": (shape.index_heads + 1) * shape.index_dim,
        }
        norms = {
            "q_norm": shape.head_dim,
            "k_norm": shape.head_dim,
            "indexer.q_layernorm": shape.index_dim,
            "indexer.k_layernorm": shape.index_dim,
        }
        attended = shape.query_heads * shape.head_dim
        return Declarations(
            weights=(
                *(Weight(f"{name}.{part}.weight", (n, shape.hidden), dtype, linear=True) for part, n in heads.items()),
                Weight(f"{name}.o_proj.weight", (shape.hidden, attended), dtype, linear=True),
                *(Weight(f"{name}.{part}.weight", (n,), dtype) for part, n in norms.items()),
            ),
            state=(
                PagedState(f"{name}.keys", entry, dtype, heads_outermost=True),
                PagedState(f"{name}.values", entry, dtype, heads_outermost=True),
                PagedState(f"{name}.index_keys", (shape.index_dim // GROUP_TOKENS,), dtype),
                RingState(f"{name}.index_ring", (shape.index_dim,), dtype, GROUP_TOKENS),
                RingState(f"{name}.index_tags", (), "int64", GROUP_TOKENS),
            ),
        )

    def bind(self, storage: Storage, ops: Operators) -> None:
        name, linears, weights, state = self.name, storage.linears, storage.weights, storage.state
        self.ops = ops
        self.q_proj, self.o_proj = linears[f"{name}.q_proj.weight"], linears[f"{name}.o_proj.weight"]
        self.k_proj, self.v_proj = linears[f"{name}.k_proj.weight"], linears[f"{name}.v_proj.weight"]
        self.q_norm, self.k_norm = weights[f"{name}.q_norm.weight"], weights[f"{name}.k_norm.weight"]
        self.index_proj = linears[f"{name}.indexer.index_qk_proj.weight"]
        self.index_norm = weights[f"{name}.indexer.q_layernorm.weight"]
        self.keys, self.values = state[f"{name}.keys"], state[f"{name}.values"]
        self.stream = IndexStream(
            ring=state[f"{name}.index_ring"],
            tags=state[f"{name}.index_tags"],
            pages=state[f"{name}.index_keys"],
            norm=weights[f"{name}.indexer.k_layernorm.weight"],
            eps=self.shape.norm_eps,
        )

    def verify(self, hidden_RH: Tensor, rows: Rows, rotary: SparseRotary) -> Tensor:
        """Attend from every active row to what it selects of the committed prefix and the rows up to itself.

        Args:
            hidden_RH: the block's input.
            rotary: of `rows.positions`.

        Returns:
            [R, H]; all NaN for a lane whose ring does not hold the open group it should.
        """
        return self._verify(hidden_RH, rows, rotary)[0]

    prefill = verify

    def commit(self, rows: Rows, emitted: Tensor) -> None:
        """Publish the first `emitted` [B] rows: the request's consumed count alone does that."""

    def draft_first(self, hidden_RH: Tensor, rows: Rows, rotary: SparseRotary) -> tuple[Tensor, DraftSelection]:
        """The first step of a proposal, one row per lane: `verify`, and what it selected."""
        assert rows.tokens.shape[1] == 1, "a draft step has one row per lane"
        output, selection = self._verify(hidden_RH, rows, rotary)
        return output, DraftSelection(selection[:, 0], rows.positions[:, 0], rows.slots)

    def draft_again(self, hidden_RH: Tensor, rows: Rows, rotary: SparseRotary, first: DraftSelection) -> Tensor:
        """A later step of the same proposal: the first selection and the tokens drafted since, no selector.

        The selector's ring and keys stay as they are; absorbing the committed pairs fills them in. A lane that now
        names another request, or a position out of reach, sees nothing. Only the quality of drafts depends on it.
        """
        assert rows.tokens.shape[1] == 1, "a draft step has one row per lane"
        query, gate = self._project(hidden_RH, rows, rotary)
        lanes = torch.arange(len(rows.slots), device=rows.slots.device)
        selection = self.ops.sparse.reuse_selection(
            first.selected,
            first.anchors,
            lanes.where(rows.slots == first.slots, -1),
            rows.positions[:, 0],
            DRAFT_TAIL_TOKENS,
        )
        return self._attend(query, gate, selection[:, None], rows)

    def _verify(self, hidden_RH: Tensor, rows: Rows, rotary: SparseRotary) -> tuple[Tensor, Tensor]:
        query, gate = self._project(hidden_RH, rows, rotary)
        selection, intact = self._select(hidden_RH, rows, rotary)
        output = self._attend(query, gate, selection, rows)
        broken = ~intact[:, None, None] & rows.active[:, :, None]
        return output.view(*rows.tokens.shape, -1).masked_fill(broken, torch.nan).flatten(0, 1), selection

    def _project(self, hidden_RH: Tensor, rows: Rows, rotary: SparseRotary) -> tuple[Tensor, Tensor]:
        """Queries and gates [R, Hq, D] of the rows; their keys and values go to the pages."""
        ops, shape = self.ops, self.shape
        fused = ops.linear(hidden_RH, self.q_proj).view(len(hidden_RH), shape.query_heads, 2, shape.head_dim)
        key = ops.linear(hidden_RH, self.k_proj).view(len(hidden_RH), shape.kv_heads, shape.head_dim)
        value = ops.linear(hidden_RH, self.v_proj).view(len(hidden_RH), shape.kv_heads, shape.head_dim)
        query = ops.sparse.norm_rotary(fused[:, :, 0], self.q_norm, *rotary.rows, shape.norm_eps)
        key = ops.sparse.norm_rotary(key, self.k_norm, *rotary.rows, shape.norm_eps)
        ops.write_pages(key, value, self.keys, self.values, rows.write_index)
        return query, fused[:, :, 1]

    def _select(self, hidden_RH: Tensor, rows: Rows, rotary: SparseRotary) -> tuple[Tensor, Tensor]:
        """Positions [B, W, budget + 3] each row sees, and whether the ring was intact [B]; absorbs the rows' keys."""
        ops, shape = self.ops, self.shape
        heads = ops.linear(hidden_RH, self.index_proj).view(len(hidden_RH), shape.index_heads + 1, shape.index_dim)
        raw = heads[:, shape.index_heads].view(*rows.tokens.shape, shape.index_dim)
        intact = ops.sparse.absorb_keys(raw, self.stream, _interval(rows), *rotary.groups)
        query = ops.sparse.norm_rotary(heads[:, : shape.index_heads], self.index_norm, *rotary.rows, shape.norm_eps)
        by_lane = query.view(*rows.tokens.shape, shape.index_heads, shape.index_dim)
        return ops.sparse.select_positions(by_lane, self.stream.pages, _interval(rows), shape.budget_tokens), intact

    def _attend(self, query: Tensor, gate: Tensor, selection: Tensor, rows: Rows) -> Tensor:
        by_lane = query.view(*rows.tokens.shape, *query.shape[1:])
        attended = self.ops.sparse.sparse_attend(
            by_lane, self.keys, self.values, selection, _interval(rows), self.shape.head_dim**-0.5
        )
        gated = self.ops.sparse.sigmoid_gate(attended.view(query.shape), gate)
        return self.ops.linear(gated.flatten(1), self.o_proj)


def _interval(rows: Rows) -> Interval:
    return Interval(rows.slots, rows.lengths, rows.counts, rows.page_tables)
