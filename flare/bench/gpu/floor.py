"""The floor: SmolLM2-135M's layers as plain torch operations in one captured graph, nothing fused, nothing sampled."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from flare.bench.gpu.visit import DRY_GEOMETRY, Visit
from flare.device.stopwatch import median_us

HIDDEN, LAYERS, QUERIES, KEYS, DIM, FFN, VOCAB = 576, 30, 9, 3, 64, 1536, 49152
EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    """One layer's weights [out, in] and its cache [1, Hk, cached + W, D]."""

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    norms: tuple[Tensor, Tensor]
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class PlainModel:
    """All layers, and what stands around them."""

    embed: Tensor
    norm: Tensor
    layers: tuple[Layer, ...]
    cosines: Tensor
    sines: Tensor
    heads: tuple[int, int, int]

    def run(self, tokens: Tensor, places: Tensor, *, head: bool) -> Tensor:
        """W rows after the cached ones: [W, V], or [W, H] without the head."""
        x = self.embed[tokens]
        size = (x.shape[1],)
        for layer in self.layers:
            x = x + self._attend(layer, rms_norm(x, size, layer.norms[0], EPS), places)
            gate, up = linear(rms_norm(x, size, layer.norms[1], EPS), layer.gate_up).chunk(2, dim=1)
            x = x + linear(silu(gate) * up, layer.down)
        x = rms_norm(x, size, self.norm, EPS)
        return linear(x, self.embed) if head else x

    def _attend(self, layer: Layer, x: Tensor, places: Tensor) -> Tensor:
        queries, keys, dim = self.heads
        fused = linear(x, layer.qkv).view(len(x), -1, dim)
        q, k, v = fused.split((queries, keys, keys), dim=1)
        q, k = self._turn(q), self._turn(k)
        layer.keys.index_copy_(2, places, k.transpose(0, 1)[None])
        layer.values.index_copy_(2, places, v.transpose(0, 1)[None])
        y = scaled_dot_product_attention(q.transpose(0, 1)[None], layer.keys, layer.values, enable_gqa=True)
        return linear(y[0].transpose(0, 1).reshape(len(x), -1), layer.output)

    def _turn(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=2)
        return x * self.cosines + torch.cat((-second, first), 2) * self.sines


def measure(visit: Visit) -> dict[str, Any]:
    """Microseconds of one forward by rows, with and without the head."""
    watch, found = visit.watch, {}
    for width in visit.sizes.rows:
        model = plain_model(visit, width)
        cached = model.layers[0].keys.shape[2] - width
        tokens = torch.zeros(width, dtype=torch.int64, device=visit.device)
        places = torch.arange(cached, cached + width, device=visit.device)
        found[str(width)] = {
            "with_head_us": median_us(
                watch, lambda m=model, t=tokens, p=places: m.run(t, p, head=True), replays=visit.sizes.replays
            ),
            "without_head_us": median_us(
                watch, lambda m=model, t=tokens, p=places: m.run(t, p, head=False), replays=visit.sizes.replays
            ),
        }
    return {"context_tokens": visit.sizes.context_tokens, "rows": found}


def plain_model(visit: Visit, width: int) -> PlainModel:
    """Drawn weights in bfloat16, cached tokens as many as the operators' cases."""
    small = DRY_GEOMETRY if visit.dry else {}
    hidden, layers, ffn = small.get("hidden", HIDDEN), small.get("layers", LAYERS), small.get("ffn", FFN)
    queries, keys, dim = small.get("query_heads", QUERIES), small.get("kv_heads", KEYS), small.get("head_dim", DIM)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": visit.device}

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, **options) / columns**0.5

    def cache() -> Tensor:
        return torch.randn(1, keys, visit.sizes.context_tokens + width, dim, **options)

    ones = torch.ones(hidden, **options)
    made = tuple(
        Layer(
            qkv=matrix((queries + 2 * keys) * dim, hidden),
            output=matrix(hidden, queries * dim),
            gate_up=matrix(2 * ffn, hidden),
            down=matrix(hidden, ffn),
            norms=(ones, ones),
            keys=cache(),
            values=cache(),
        )
        for _ in range(layers)
    )
    turns = torch.randn(2, width, 1, dim, **options)
    embed = matrix(small.get("vocab", VOCAB), hidden)
    return PlainModel(embed, ones, made, turns[0], turns[1], (queries, keys, dim))
