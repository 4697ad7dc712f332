"""A sparse mixture of experts with one shared expert; routed experts are stored dense or as NVFP4.

Shapes: R rows, H hidden, F expert width, E experts. Source: Qwen4-exp's sparse block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flare.layers.storage import Storage
from flare.ops.formats.nvfp4 import BLOCK, Nvfp4
from flare.ops.moe import DenseMatrices, Experts, StackedMatrices
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations, Weight

ExpertFormat = Literal["dense", "nvfp4"]
"""How routed experts are stored: in the model's dtype, or NVFP4 read as W4A16."""


@dataclass(frozen=True)
class MoeShape:
    """Geometry of the block.

    Attributes:
        ffn, shared_ffn: widths of a routed and of the shared expert; top_k: experts of one row.
        expert_format: how the routed experts are stored.
    """

    hidden: int
    experts: int
    top_k: int
    ffn: int
    shared_ffn: int
    expert_format: ExpertFormat


class SparseMoe:
    """The block `{name}` (`layers.0.mlp`). Stateless: its candidates need no commit."""

    def __init__(self, name: str, shape: MoeShape, dtype: str) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype

    def declare(self) -> Declarations:
        shape, name, dtype = self.shape, self.name, self.dtype
        wide, narrow = (shape.shared_ffn, shape.hidden), (shape.hidden, shape.shared_ffn)
        return Declarations(
            weights=(
                # A coarser router chooses other experts: no lossy packing.
                Weight(f"{name}.gate.weight", (shape.experts, shape.hidden), dtype, linear=True, exact=True),
                Weight(f"{name}.shared_expert_gate.weight", (1, shape.hidden), dtype, linear=True, exact=True),
                Weight(f"{name}.shared_expert.gate_proj.weight", wide, dtype, linear=True),
                Weight(f"{name}.shared_expert.up_proj.weight", wide, dtype, linear=True),
                Weight(f"{name}.shared_expert.down_proj.weight", narrow, dtype, linear=True),
                *self._declare_experts(),
            )
        )

    def _declare_experts(self) -> Iterator[Weight]:
        shape = self.shape
        for projection in ("gate_proj", "up_proj", "down_proj"):
            outputs, inputs = (shape.hidden, shape.ffn) if projection == "down_proj" else (shape.ffn, shape.hidden)
            name, leading = f"{self.name}.experts.{projection}", (shape.experts, outputs)
            match shape.expert_format:
                case "dense":
                    yield Weight(f"{name}.weight", (*leading, inputs), self.dtype)
                case "nvfp4":
                    yield Weight(f"{name}.weight", (*leading, inputs // 2), "uint8")
                    yield Weight(f"{name}.weight_scale", (*leading, inputs // BLOCK), "float8_e4m3fn")
                    yield Weight(f"{name}.weight_scale_2", (shape.experts,), "float32")

    def bind(self, storage: Storage, ops: Operators) -> None:
        self.ops, linears, shared = ops, storage.linears, f"{self.name}.shared_expert"
        self.router = linears[f"{self.name}.gate.weight"]
        self.shared_gate = linears[f"{self.name}.shared_expert_gate.weight"]
        self.gate, self.up = linears[f"{shared}.gate_proj.weight"], linears[f"{shared}.up_proj.weight"]
        self.down = linears[f"{shared}.down_proj.weight"]
        self.experts = Experts(
            self._stacked(storage, "gate_proj"), self._stacked(storage, "up_proj"), self._stacked(storage, "down_proj")
        )

    def _stacked(self, storage: Storage, projection: str) -> StackedMatrices:
        weights, name = storage.weights, f"{self.name}.experts.{projection}"
        if self.shape.expert_format == "dense":
            return DenseMatrices(weights[f"{name}.weight"])
        return Nvfp4(weights[f"{name}.weight"], weights[f"{name}.weight_scale"], weights[f"{name}.weight_scale_2"])

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [R, H] → [R, H]."""
        ops = self.ops
        routed = ops.experts(x, ops.route(ops.linear(x, self.router), self.shape.top_k), self.experts)
        gate_up = torch.cat((ops.linear(x, self.gate), ops.linear(x, self.up)), dim=1)
        shared = ops.linear(ops.silu_mul(gate_up), self.down)
        return ops.add_gated(routed, shared, ops.linear(x, self.shared_gate))
