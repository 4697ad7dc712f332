"""One gated delta layer on poisoned storage, driven round by round, and the same a token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flare import ops
from flare.contract.manifest import Extent
from flare.layers.gated_delta import GatedDelta, GatedDeltaShape
from flare.layers.rows import PageTables, RoundShape, Rows, causal_rows
from flare.layers.storage import Storage
from flare.ops.gated_delta import DeltaOperators
from flare.ops.short_conv import Boundary
from flare.state.arena import Arena, torch_dtype

SHAPE = GatedDeltaShape(hidden=12, key_heads=2, value_heads=6, key_dim=4, value_dim=5, taps=4, norm_eps=1e-6)
SLOTS = 6
NULL = SLOTS
LANES = 4
EXTENT = Extent(
    lanes=LANES, slots=SLOTS, pages=1, pages_per_request=1, width=8, chunk=64, context=64, vocab=1, logprobs=1
)


def weights(shape: GatedDeltaShape = SHAPE, seed: int = 0) -> dict[str, Tensor]:
    """Float64 weights that keep all gates off their flat ends."""
    draws = torch.Generator().manual_seed(seed)
    declared = GatedDelta("layer", shape, "float64", RoundShape(1, 1)).declare().weights
    values = {w.name: torch.randn(w.shape, generator=draws, dtype=torch.float64) for w in declared}
    return {name: value / (value.shape[-1] ** 0.5 if value.ndim == 2 else 1) for name, value in values.items()}


@dataclass
class Bench:
    """A bound layer with its state; every method takes inputs lane by lane, of any length."""

    layer: GatedDelta
    state: dict[str, Tensor]

    def verify(self, slots: Sequence[int], lengths: Sequence[int], x: Sequence[Tensor], width: int) -> list[Tensor]:
        """A verification; rows of lane b are x[b] [n, H], the rest of the round is NaN. Outputs lane by lane."""
        rows, flat = self._rows(slots, lengths, x, width)
        y = self.layer.verify(flat, rows).view(len(slots), width, -1)
        self.rows = rows
        return [y[lane, : len(inputs)] for lane, inputs in enumerate(x)]

    def commit(self, emitted: Sequence[int], boundary: Boundary | None = None) -> None:
        """Publish rows of the last verification."""
        self.layer.commit(self.rows, torch.tensor(emitted), boundary)

    def prefill(self, slot: int, length: int, x: Tensor, capacity: int) -> Tensor:
        """A chunk x [n, H] in a graph of `capacity` rows."""
        rows, flat = self._rows([slot], [length], [x], capacity)
        return self.layer.prefill(flat, rows)[: len(x)]

    def reachable(self, slot: int) -> list[Tensor]:
        """What the future of a request depends on: its history and its one live matrix."""
        matrix = self.state["layer.matrix"][slot]
        if "layer.selected" in self.state:
            matrix = matrix[self.state["layer.selected"][slot]]
        return [self.state["layer.conv"][slot].clone(), matrix.clone()]

    def _rows(
        self, slots: Sequence[int], lengths: Sequence[int], x: Sequence[Tensor], width: int
    ) -> tuple[Rows, Tensor]:
        flat = torch.full((len(slots), width, x[0].shape[1]), torch.nan, dtype=x[0].dtype)
        for lane, inputs in enumerate(x):
            flat[lane, : len(inputs)] = inputs
        pages = PageTables(torch.zeros(len(slots), 1, dtype=torch.int32), 1, EXTENT.context)
        counts = torch.tensor([len(inputs) for inputs in x])
        tokens = torch.zeros(len(slots), width, dtype=torch.int64)
        rows = causal_rows(tokens, counts, torch.tensor(lengths), torch.tensor(slots), pages)
        return rows, flat.flatten(0, 1)


def bench(
    form: type[GatedDelta],
    dtype: str = "float64",
    *,
    shape: GatedDeltaShape = SHAPE,
    stored: dict[str, Tensor] | None = None,
    delta: DeltaOperators | None = None,
) -> Bench:
    """A fresh layer; all state that may hold anything holds NaN, slots of new requests included."""
    stored = stored or weights(shape)
    layer = form("layer", shape, dtype, RoundShape(LANES, 8))
    declared, operators = layer.declare(), ops.load("cpu")
    arena = Arena([declared], EXTENT, torch.device("cpu"))
    for tensor in arena.tensors.values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    cast = {weight.name: stored[weight.name].to(torch_dtype(dtype)) for weight in declared.weights}
    linear = {weight.name for weight in declared.weights if weight.linear}
    storage = Storage(
        weights={name: value for name, value in cast.items() if name not in linear},
        linears={name: operators.pack_linear(cast[name], "dense") for name in linear},
        state=arena.tensors,
    )
    layer.bind(storage, operators if delta is None else replace(operators, delta=delta))
    return Bench(layer, dict(arena.tensors))


def inputs(tokens: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random x [tokens, H]."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, SHAPE.hidden, generator=draws, dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Steps:
    """A token at a time: outputs [T, H], and what is reachable after n tokens in states[n] (nothing at 0)."""

    outputs: Tensor
    states: list[list[Tensor]]


def single_steps(x: Tensor, form: type[GatedDelta] = GatedDelta, dtype: str = "float64") -> Steps:
    """Rounds of width one."""
    core, outputs, states = bench(form, dtype), [], [[]]
    for index in range(len(x)):
        outputs += core.verify([0], [index], [x[index : index + 1]], 1)
        core.commit([1])
        states.append(core.reachable(0))
    return Steps(torch.cat(outputs), states)
