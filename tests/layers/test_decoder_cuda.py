"""A dense decoder over the CUDA operators computes what it computes over the CPU's: prompt chunk, rounds, poison."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flare import ops
from flare.contract.manifest import Extent
from flare.layers.attention import AttentionShape
from flare.layers.decoder import DecoderShape, DenseDecoder
from flare.layers.rows import PageTables, causal_rows
from flare.layers.storage import Storage
from flare.ops.attention import cuda as attention
from flare.ops.embedding import cuda as embedding
from flare.ops.linear import cuda as linear
from flare.ops.norm import cuda as norm
from flare.ops.operators import Operators
from flare.ops.projection import cuda as projection
from flare.ops.rotary import cuda as rotary
from flare.state.arena import Arena
from tests.ops.triton_device import DEVICE, error

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

CPU = ops.load("cpu")
CUDA = replace(
    CPU,
    pack_linear=linear.pack_linear,
    linear=linear.linear,
    rms_norm=norm.rms_norm,
    rotary_table=lambda positions, dim, base, dtype: rotary.rotary_table(positions, dim, base, dtype, DEVICE),
    rotary_rows=rotary.rotary_rows,
    paged_attention=attention.paged_attention,
    project_heads=projection.project_heads,
    norm_gate=projection.norm_gate,
    add_linear=projection.add_linear,
    embed=embedding.embed,
)
SHAPE = DecoderShape(
    vocab=61, layers=2, attention=AttentionShape(24, 4, 2, 6), ffn=40, rope_base=1000.0, norm_eps=1e-5, context=256
)
EXTENT = Extent(lanes=2, slots=2, pages=8, pages_per_request=4, width=8, chunk=64, context=256, vocab=61)
TABLES = torch.tensor([[5, 2, 7, 0], [1, 3, 6, 4]], dtype=torch.int32)


def bound(operators: Operators, device: str) -> DenseDecoder:
    """Random weights, NaN everywhere in the pages."""
    decoder = DenseDecoder(SHAPE, "float32")
    declared = decoder.declare()
    generator, weights = torch.Generator().manual_seed(0), {}
    for weight in declared.weights:
        values = torch.randn(weight.shape, generator=generator)
        scaled = 1 + 0.1 * values if weight.name.endswith("norm") else values * 2 / weight.shape[-1] ** 0.5
        weights[weight.name] = scaled.to(device)
    linears = {weight.name for weight in declared.weights if weight.linear}
    state = Arena([declared], EXTENT, torch.device(device)).tensors
    for pool in state.values():
        pool.fill_(torch.nan)
    packed = {name: operators.pack_linear(weights[name], "dense") for name in linears}
    decoder.bind(Storage({n: w for n, w in weights.items() if n not in linears}, packed, state), operators)
    return decoder


def logits(decoder: DenseDecoder, device: str, tokens: Tensor, counts: list[int], lengths: list[int]) -> Tensor:
    """Of the active rows."""
    lanes = len(counts)
    pages = PageTables(TABLES[:lanes].to(device), null_page=8, context=SHAPE.context)
    held = (tokens, *(torch.tensor(x) for x in (counts, lengths)), torch.arange(lanes))
    rows = causal_rows(*(x.to(device) for x in held), pages=pages)
    y = decoder.head(decoder.verify(rows).output)
    return y.view(*tokens.shape, -1)[rows.active].cpu()


def test_both_operator_sets_compute_the_same_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = [(bound(CPU, "cpu"), "cpu"), (bound(CUDA, DEVICE), DEVICE)]
    # Few rows, and many in one pass over the past; across a page's end, ragged lanes, a dead one.
    monkeypatch.setattr(attention, "_SPLIT_ROWS", 32)
    steps = [(4, [4, 2], [0, 0]), (34, [28], [4]), (34, [30], [32]), (8, [8, 5], [62, 2]), (1, [1, 0], [70, 7])]
    for seed, (width, counts, lengths) in enumerate(steps):
        tokens = torch.randint(61, (len(counts), width), generator=torch.Generator().manual_seed(seed))
        expected, y = (logits(decoder, device, tokens, counts, lengths) for decoder, device in decoders)
        # Both sum in float32, in different orders: each is 1e-6 to 3e-6 from float64 here; a wrong step shows as 1e-2.
        assert error(y, expected) < 1e-5, width


def test_what_a_layer_reads_early_is_older_than_the_operator_before_it() -> None:
    called: list[str] = []

    def noted(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            called.append(name)
            return operator(*args, **options)

        return run

    plain = {each.name: getattr(CPU, each.name) for each in fields(CPU)}
    decoder = bound(replace(CPU, **{name: noted(name, op) for name, op in plain.items() if callable(op)}), "cpu")
    called.clear()
    logits(decoder, "cpu", torch.zeros(1, 2, dtype=torch.int64), [2], [0])
    first = called.index("project_heads")
    assert "rotary_rows" in called[: first - 1] and called[first - 1] != "rotary_rows"
