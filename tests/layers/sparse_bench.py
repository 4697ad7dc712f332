"""One sparse attention layer driven by hand: requests in slots, rounds of any width, NaN wherever nothing may look."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flare import ops
from flare.contract.manifest import Extent
from flare.layers.rows import PageTables, Rows, causal_rows
from flare.layers.sparse_attention import SparseAttention, SparseAttentionShape, SparseRotary, sparse_rotary
from flare.layers.storage import Storage
from flare.ops.operators import Operators
from flare.ops.sparse_attention import SparseOperators
from flare.state.arena import Arena, torch_dtype

SHAPE = SparseAttentionShape(
    hidden=12, query_heads=4, kv_heads=2, head_dim=8, index_heads=4, index_dim=8, budget_tokens=8, norm_eps=1e-6
)
NAME = "layers.3.self_attn"
SLOTS, PAGES_PER_REQUEST, ROTARY_DIM = 4, 3, 4
EXTENT = Extent(
    lanes=4,
    slots=SLOTS,
    pages=SLOTS * PAGES_PER_REQUEST,
    pages_per_request=PAGES_PER_REQUEST,
    width=8,
    chunk=64,
    context=PAGES_PER_REQUEST * 64,
    vocab=1,
    logprobs=0,
)


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    """Float64 weights whose scores and gates are well spread."""
    draws = torch.Generator().manual_seed(seed)
    return {
        weight.name: torch.randn(weight.shape, generator=draws, dtype=torch.float64)
        / (weight.shape[-1] ** 0.5 if weight.linear else 10)
        for weight in SparseAttention(NAME, SHAPE, "float64").declare().weights
    }


@dataclass
class Bench:
    """A layer with its state; slot s owns pages in an order of its own."""

    layer: SparseAttention
    operators: Operators
    table: Tensor
    state: dict[str, Tensor]
    consumed: dict[int, int] = field(default_factory=dict)

    def pages(self, slot: int) -> list[int]:
        return [slot + SLOTS * ((page + slot) % PAGES_PER_REQUEST) for page in range(PAGES_PER_REQUEST)]

    def rows(self, slots: Sequence[int], lengths: Sequence[int], counts: Sequence[int], width: int) -> Rows:
        """Rows for the named slots; the null slot makes a dead lane."""
        tables = torch.tensor(
            [[EXTENT.null_page] * PAGES_PER_REQUEST if slot == SLOTS else self.pages(slot) for slot in slots],
            dtype=torch.int32,
        )
        return causal_rows(
            torch.zeros(len(slots), width, dtype=torch.int64),
            torch.tensor(counts),
            torch.tensor(lengths),
            torch.tensor(slots),
            PageTables(tables, EXTENT.null_page, EXTENT.context),
        )

    def rotary(self, rows: Rows) -> SparseRotary:
        return sparse_rotary(self.operators, self.table, rows.positions)

    def verify(self, inputs: dict[int, Tensor], width: int, lanes: int | None = None) -> dict[int, Tensor]:
        """Verify some rows of each named slot after what it consumed; their outputs. Inactive inputs are NaN."""
        slots = [*inputs, *[SLOTS] * ((lanes or len(inputs)) - len(inputs))]
        hidden = torch.full((len(slots), width, SHAPE.hidden), torch.nan, dtype=self.table.dtype)
        counts = [0] * len(slots)
        for lane, rows_in in enumerate(inputs.values()):
            hidden[lane, : len(rows_in)], counts[lane] = rows_in, len(rows_in)
        rows = self.rows(slots, [self.consumed.get(slot, 0) for slot in slots], counts, width)
        output = self.layer.verify(hidden.flatten(0, 1), rows, self.rotary(rows)).view(hidden.shape)
        return {slot: output[lane, : counts[lane]] for lane, slot in enumerate(inputs)}

    def commit(self, emitted: dict[int, int]) -> None:
        """Consume the first rows of the last `verify`."""
        for slot, count in emitted.items():
            self.consumed[slot] = self.consumed.get(slot, 0) + count

    def consume(self, slot: int, inputs: Tensor, width: int | None = None) -> Tensor:
        """Prefill one chunk; its outputs."""
        output = self.verify({slot: inputs}, width or len(inputs))[slot]
        self.commit({slot: len(inputs)})
        return output

    def saved(self) -> tuple[dict[str, Tensor], dict[int, int]]:
        """Everything, to come back to."""
        return {name: tensor.clone() for name, tensor in self.state.items()}, dict(self.consumed)

    def restore(self, saved: tuple[dict[str, Tensor], dict[int, int]]) -> None:
        state, self.consumed = saved[0], dict(saved[1])
        for name, tensor in state.items():
            self.state[name].copy_(tensor)

    def reachable(self, slot: int) -> dict[str, Tensor]:
        """All a request's future depends on: pages up to N, keys of complete groups, raw keys of the open group."""
        consumed, pages = self.consumed.get(slot, 0), self.pages(slot)
        held = {name: self.state[f"{NAME}.{name}"][pages].flatten(0, 1)[:consumed] for name in ("keys", "values")}
        groups = self.state[f"{NAME}.index_keys"][pages].view(-1, SHAPE.index_dim)
        held["groups"] = groups[: consumed // 4]
        ring, tags = self.state[f"{NAME}.index_ring"][slot], self.state[f"{NAME}.index_tags"][slot]
        entries = torch.arange(consumed // 4 * 4, consumed) % len(ring)
        held["open keys"], held["open tags"] = ring[entries], tags[entries]
        return {name: tensor.clone() for name, tensor in held.items()}


def bench(sparse: SparseOperators | None = None, dtype: str = "float64", shape: SparseAttentionShape = SHAPE) -> Bench:
    """A fresh layer, with other sparse operators if given; all storage is NaN, tags name no position."""
    operators = ops.load("cpu")
    operators = replace(operators, sparse=sparse or operators.sparse)
    layer = SparseAttention(NAME, shape, dtype)
    arena = Arena([layer.declare()], EXTENT, torch.device("cpu"))
    weights = {name: tensor.to(torch_dtype(dtype)) for name, tensor in random_weights().items()}
    linear = {weight.name for weight in layer.declare().weights if weight.linear}
    for tensor in arena.tensors.values():
        tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
    layer.bind(
        Storage(
            weights={name: tensor for name, tensor in weights.items() if name not in linear},
            linears={name: operators.pack_linear(weights[name], "dense") for name in linear},
            state=arena.tensors,
        ),
        operators,
    )
    table = operators.rotary_table(EXTENT.context, ROTARY_DIM, 10000.0, torch_dtype(dtype))
    return Bench(layer, operators, table, dict(arena.tensors))


def inputs_of(seed: int, tokens: int = 160) -> Tensor:
    """Block inputs [tokens, H] of one request by position."""
    return torch.randn(tokens, SHAPE.hidden, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
