"""A PLE layer on its own: requests in slots, rounds of candidates, and an oracle that reads whole token lists.

Slots begin with what another request left: any ids, NaN inputs. Candidate storage and the null slot hold NaN.
"""

from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from flare.layers.ple import PerLayerEmbedding, PleShape
from flare.layers.rows import RoundShape, Rows
from flare.ops.formats.fp8 import quantise_fp8
from flare.ops.formats.nvfp4 import quantise_nvfp4
from flare.ops.ngram import NgramHash
from flare.ops.ngram import reference as ngram
from flare.ops.ngram.geometry import NgramShape
from flare.ops.norm import reference as norm
from flare.ops.operators import Operators
from flare.ops.short_conv import Boundary
from flare.state.arena import torch_dtype
from tests.layers.binding import CPU, SLOTS, draw, random_weights, stored

NGRAM = NgramShape(vocab=96, order=3, heads_per_order=2, base=50, divisor=8, eos=95)
SHAPE = PleShape(hidden=8, streams=4, embed=64, ngram=NGRAM, kernel=4, eps=1e-6, table_format="dense")
TABLE = "layers.1.ple.ple_embedding.ngram_embedding"


def layer_of(shape: PleShape = SHAPE, dtype: str = "float64", kind: type = PerLayerEmbedding) -> PerLayerEmbedding:
    return kind("layers.1.ple", shape, dtype, RoundShape(lanes=4, width=8))


def weights_of(layer: PerLayerEmbedding) -> dict[str, Tensor]:
    """Random weights, the derived hash, and the table in the layer's format."""
    weights, geometry, shape = random_weights(layer.declare()), layer.geometry, layer.shape
    embedding = "layers.1.ple.ple_embedding"
    weights[f"{embedding}.layer_multipliers"] = torch.tensor(geometry.multipliers)
    weights[f"{embedding}.ngram_heads_vocab_sizes"] = torch.tensor(geometry.sizes)
    weights[f"{embedding}.ngram_heads_offsets"] = torch.tensor(geometry.offsets)
    table = plain_table(shape)
    if shape.table_format == "dense":
        weights[f"{TABLE}.weight"] = table.to(torch_dtype(layer.dtype))
    elif shape.table_format == "fp8":
        fp8 = quantise_fp8(table)
        weights |= {f"{TABLE}.weight": fp8.values, f"{TABLE}.weight_scale": fp8.scale}
    elif shape.table_format == "nvfp4":
        nvfp4 = quantise_nvfp4(table)
        weights |= {f"{TABLE}.weight": nvfp4.packed, f"{TABLE}.weight_scale": nvfp4.scale}
        weights[f"{TABLE}.weight_scale_2"] = nvfp4.scale_2.view(1)
    return weights


def plain_table(shape: PleShape) -> Tensor:
    """The values every stored format of the table approximates."""
    return draw(240, shape.embed // shape.ngram.heads, seed=99)


def token_ids(count: int, seed: int) -> list[int]:
    """Ids of a small alphabet with an EOS every few tokens, so that cuts happen everywhere."""
    ids = torch.randint(0, 6, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [NGRAM.eos if token == 5 else token for token in ids]


@cache
def residual_of(token: int, position: int) -> Tensor:
    """Any residual row that a token and its position determine."""
    return draw(SHAPE.width, seed=1000 * token + position)


@dataclass
class Bench:
    """One bound layer; `consumed` holds the committed ids of each slot."""

    layer: PerLayerEmbedding
    weights: dict[str, Tensor]
    consumed: dict[int, list[int]] = field(default_factory=dict)

    def rows(self, slots: list[int], candidates: list[list[int]], width: int, lanes: int) -> tuple[Tensor, Rows]:
        """Residuals and rows of a round; lanes beyond `slots` are dead, inactive rows hold NaN."""
        tokens, counts = torch.zeros(lanes, width, dtype=torch.int64), torch.zeros(lanes, dtype=torch.int64)
        lengths, named = torch.zeros(lanes, dtype=torch.int64), torch.full((lanes,), SLOTS)
        residual = torch.full((lanes, width, SHAPE.width), torch.nan, dtype=torch.float64)
        for lane, (slot, ids) in enumerate(zip(slots, candidates, strict=True)):
            committed = len(self.consumed[slot])
            tokens[lane, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
            counts[lane], lengths[lane], named[lane] = len(ids), committed, slot
            for place, token in enumerate(ids):
                residual[lane, place] = residual_of(token, committed + place)
        positions = lengths[:, None] + torch.arange(width)
        active = torch.arange(width) < counts[:, None]
        unused = torch.zeros(lanes, 2, dtype=torch.int32)
        rows = Rows(tokens, positions, active, counts, lengths, named, unused, torch.zeros(lanes * width).long())
        return residual.flatten(0, 1), rows

    def round(
        self,
        slots: list[int],
        candidates: list[list[int]],
        emitted: list[int],
        width: int,
        lanes: int,
        boundary: Boundary | None = None,
    ) -> list[Tensor]:
        """Verify and commit; what each lane's active rows became."""
        self.layer.candidates.fill_(torch.nan)
        residual, rows = self.rows(slots, candidates, width, lanes)
        moved = self.layer.verify(residual, rows).unflatten(0, (lanes, width))
        taken = torch.tensor(emitted + [0] * (lanes - len(slots)))
        self.layer.candidates[:, width:] = torch.nan
        for lane in range(lanes):
            self.layer.candidates[lane, emitted[lane] if lane < len(slots) else 0 :] = torch.nan
        self.layer.commit(rows, taken, boundary)
        for slot, ids, count in zip(slots, candidates, emitted, strict=True):
            self.consumed[slot] = self.consumed[slot] + ids[:count]
        return [moved[lane, : len(ids)] for lane, ids in enumerate(candidates)]

    def chunk(self, slot: int, ids: list[int], capacity: int) -> Tensor:
        """Prefill; what the chunk's rows became."""
        residual, rows = self.rows([slot], [ids], capacity, 1)
        moved = self.layer.prefill(residual, rows)[: len(ids)]
        self.consumed[slot] = self.consumed[slot] + ids
        return moved

    def oracle(self, ids: list[int]) -> Tensor:
        """What the layer makes of a whole request, in one piece and from the definitions."""
        weight, shape = {name.removeprefix("layers.1.ple."): w for name, w in self.weights.items()}, SHAPE
        geometry = self.layer.geometry
        hashing = NgramHash(*(torch.tensor(n) for n in (geometry.multipliers, geometry.sizes, geometry.offsets)), 95)
        hashed = ngram.ngram_rows(torch.tensor([[95, 95, *ids]]), hashing)
        embedding = weight["ple_embedding.ngram_embedding.weight"][hashed].flatten(1)
        residual = torch.stack([residual_of(token, position) for position, token in enumerate(ids)])

        def normed(x: Tensor, name: str) -> Tensor:
            return norm.zero_centred_norm(x, weight[f"{name}.weight"], shape.eps, shape.streams)

        key, value = embedding @ weight["key_proj.weight"].T, embedding @ weight["value_proj.weight"].T
        gated = ngram.gate_streams(normed(key, "norm_key"), normed(residual, "norm_query"), value)
        window = torch.cat((torch.zeros(9, shape.width).double(), normed(gated, "norm_conv")))
        return residual + ngram.dilated_conv(gated[None], window[None], weight["conv1d.weight"].squeeze(1), 3)[0]

    def history(self, slot: int) -> tuple[Tensor, Tensor]:
        """The reachable part of a slot's state: context ids and convolution inputs."""
        known = len(self.consumed[slot])
        return self.layer.context[slot, max(2 - known, 0) :], self.layer.conv[slot, max(9 - known, 0) :]


def bench(layer: PerLayerEmbedding | None = None, operators: Operators = CPU) -> Bench:
    """A layer bound to poisoned state, every slot a fresh request."""
    layer = layer or layer_of()
    weights = weights_of(layer)
    layer.bind(stored(layer.declare(), weights), operators)
    layer.context.copy_(torch.randint(-9, 96, layer.context.shape, generator=torch.Generator().manual_seed(5)))
    layer.conv.fill_(torch.nan)
    layer.candidates.fill_(torch.nan)
    return Bench(layer, weights, {slot: [] for slot in range(SLOTS)})
