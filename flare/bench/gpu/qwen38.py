"""What each operator of a Qwen3.8 layer costs, beside the bytes it cannot avoid to move.

A case that reads much runs over several layers' worth of operands in turn, as a model does, so that the second-level
cache holds none of them between two runs. The others run as often over one set: a lone launch would be timed with the
start of its graph, which takes longer than most of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from flare import ops
from flare.bench.gpu.visit import Visit
from flare.contract.manifest import PAGE_TOKENS
from flare.device.stopwatch import Work, median_us, stopwatch
from flare.ops.formats.fp8 import Fp8
from flare.ops.formats.nvfp4 import BLOCK, Nvfp4
from flare.ops.gated_delta import DeltaInputs, DeltaRecords
from flare.ops.moe import Experts
from flare.ops.ngram import NgramTable
from flare.ops.short_conv import Boundary, LaneRows
from flare.ops.sparse_attention import IndexStream, Interval
from flare.plan.plan import DeviceName


@dataclass(frozen=True)
class Sizes:
    """A layer's sizes, and what is measured: rounds (lanes, width), rows of experts, chunks and contexts in tokens."""

    key_heads: int = 16
    value_heads: int = 48
    delta_dim: int = 128
    hidden: int = 2560
    streams: int = 4
    experts: int = 512
    choices: int = 10
    ffn: int = 640
    query_heads: int = 24
    kv_heads: int = 2
    head_dim: int = 256
    index_heads: int = 4
    index_dim: int = 128
    budget: int = 2048
    layers: int = 8
    rounds: tuple[tuple[int, int], ...] = ((1, 1), (1, 4), (1, 8), (4, 1), (4, 6))
    expert_rows: tuple[int, ...] = (1, 4, 8, 24, 32, 64, 512, 4096)
    chunks: tuple[int, ...] = (512, 4096)
    contexts: tuple[int, ...] = (1024, 4096, 32768, 262144)
    dtype: torch.dtype = torch.bfloat16


TINY = Sizes(
    key_heads=1, value_heads=2, delta_dim=8, hidden=32, experts=4, choices=2, ffn=16, query_heads=4, kv_heads=2,
    head_dim=16, index_heads=2, index_dim=8, budget=16, layers=2, rounds=((1, 1), (2, 3)), expert_rows=(1, 5),
    chunks=(8,), contexts=(100,), dtype=torch.float32,
)  # fmt: skip
"""Milliseconds on a CPU: whether all cases run."""


class OperatorTime(TypedDict):
    """One case: microseconds of a call, the bytes it must move (0 where they do not bound it), and their rate."""

    case: str
    us: float
    bytes: int
    terabytes_per_s: float


class _Case(NamedTuple):
    name: str
    calls: list[Work]
    bytes: int


class _Bench:
    """Draws operands on one device for one set of sizes."""

    def __init__(self, device: DeviceName, sizes: Sizes) -> None:
        self.device, self.sizes, self.ops = device, sizes, ops.load(device)
        self.draws = torch.Generator(device).manual_seed(1)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        made = torch.randn(shape, generator=self.draws, device=self.device, dtype=torch.float32)
        return made.to(dtype or self.sizes.dtype)

    def whole(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def lanes(self, count: int, width: int, length: int = 1000) -> LaneRows:
        return LaneRows(self.whole(list(range(count))), self.whole([length] * count), self.whole([width] * count))

    def each_layer(self, call: Callable[[], Work]) -> list[Work]:
        return [call() for _ in range(self.sizes.layers)]


def measure(visit: Visit) -> dict[str, Any]:
    """Every case at the recipe's full geometry."""
    return {"cases": qwen38_operator_times(visit.device, TINY if visit.dry else None, visit.sizes.replays)}


def qwen38_operator_times(
    device: DeviceName = "cuda", sizes: Sizes | None = None, replays: int = 20
) -> list[OperatorTime]:
    """Median time of every case; operands of one case are freed before the next."""
    bench, watch, found = _Bench(device, sizes or Sizes()), stopwatch(device), []
    for case in _cases(bench):
        calls = case.calls * -(-bench.sizes.layers // len(case.calls))

        def work(calls: list[Work] = calls) -> None:
            for call in calls:
                call()

        us = median_us(watch, work, replays=replays) / len(calls)
        found.append(OperatorTime(case=case.name, us=us, bytes=case.bytes, terabytes_per_s=case.bytes / us / 1e6))
    return found


def _cases(bench: _Bench) -> Iterator[_Case]:
    for lanes, width in bench.sizes.rounds:
        yield from _delta(bench, lanes, width)
        yield from _streams(bench, lanes * width)
        yield from _ngrams(bench, lanes, width)
    for chunk in bench.sizes.chunks:
        yield _delta_prefill(bench, chunk)
    yield from _experts(bench)
    for context in bench.sizes.contexts:
        for lanes, width in bench.sizes.rounds:
            yield from _attention(bench, lanes, width, context)
    yield from _attention(bench, 1, bench.sizes.chunks[0], bench.sizes.contexts[0])


def _delta_operands(bench: _Bench, lanes: int, width: int) -> tuple[DeltaInputs, Tensor, DeltaRecords]:
    sizes = bench.sizes
    keys, values, dim = sizes.key_heads, sizes.value_heads, sizes.delta_dim
    shapes = (lanes, width, (2 * keys + values) * dim), (lanes, width, values), (lanes, width, values)
    qkv, a, b = (bench.normal(*shape) for shape in shapes)
    inputs = DeltaInputs(qkv, a, b, a_log=bench.normal(values), dt_bias=bench.normal(values))
    matrix = bench.normal(2 * lanes + 1, values, dim, dim, dtype=torch.float32)
    recorded = (values, dim), (keys, dim), (values,)
    return inputs, matrix, DeltaRecords(*(matrix.new_zeros(lanes, width, *shape) for shape in recorded))


def _delta(bench: _Bench, lanes: int, width: int) -> Iterator[_Case]:
    delta, rows = bench.ops.delta, bench.lanes(lanes, width)
    operands = [_delta_operands(bench, lanes, width) for _ in range(bench.sizes.layers)]
    matrix_bytes = 4 * operands[0][1][:lanes].numel()
    boundary = Boundary(bench.whole([1] * lanes), bench.whole([lanes + 1 + lane for lane in range(lanes)]))
    shape = f"{lanes} × {width}"
    yield _Case(
        f"delta verify {shape}", [lambda o=o: delta.verify(o[0], o[1], rows, o[2]) for o in operands], matrix_bytes
    )
    yield _Case(
        f"delta commit {shape}", [lambda o=o: delta.commit(o[2], o[1], rows) for o in operands], 2 * matrix_bytes
    )
    crossing: list[Work] = [lambda o=o: delta.commit(o[2], o[1], rows, boundary) for o in operands]
    yield _Case(f"delta commit with boundary {shape}", crossing, 3 * matrix_bytes)
    channels = operands[0][0].qkv.shape[2]
    taps, history = bench.normal(channels, 4), bench.normal(lanes + 1, 3, channels)
    yield _Case(
        f"short conv {shape}", [lambda o=o: delta.short_conv(o[0].qkv, taps, history, rows) for o in operands], 0
    )
    yield _Case(
        f"shift history {shape}", [lambda o=o: delta.shift_history(o[0].qkv, history, rows) for o in operands], 0
    )
    o = bench.normal(lanes, width, bench.sizes.value_heads, bench.sizes.delta_dim)
    weight = bench.normal(bench.sizes.delta_dim)
    yield _Case(f"gated norm {shape}", [lambda: delta.gated_norm(o, o, weight, 1e-6, "sigmoid")], 0)


def _delta_prefill(bench: _Bench, chunk: int) -> _Case:
    rows, operands = bench.lanes(1, chunk), [_delta_operands(bench, 1, chunk)]
    return _Case(f"delta prefill {chunk}", [lambda o=o: bench.ops.delta.prefill(o[0], o[1], rows) for o in operands], 0)


def _streams(bench: _Bench, rows: int) -> Iterator[_Case]:
    operators, streams, hidden = bench.ops, bench.sizes.streams, bench.sizes.hidden
    residual, gate, y = (
        bench.normal(rows, streams * hidden),
        bench.normal(rows, streams * hidden),
        bench.normal(rows, hidden),
    )
    injection, logits = bench.normal(rows, streams), bench.normal(rows, bench.sizes.experts)
    yield _Case(f"mix streams {rows}", [lambda: operators.mix_streams(residual, gate, streams)], 0)
    yield _Case(f"inject streams {rows}", [lambda: operators.inject_streams(residual, y, injection)], 0)
    yield _Case(f"scaled silu {rows}", [lambda: operators.scaled_silu(y, streams)], 0)
    yield _Case(f"route {rows}", [lambda: operators.route(logits, bench.sizes.choices)], 0)
    yield _Case(f"add gated {rows}", [lambda: operators.add_gated(y, y, injection[:, :1])], 0)


def _ngrams(bench: _Bench, lanes: int, width: int) -> Iterator[_Case]:
    operators, sizes, rows = bench.ops, bench.sizes, lanes * width
    wide, heads, table_rows = sizes.streams * sizes.hidden, 16, 100_000
    key, value = bench.normal(rows, wide), bench.normal(rows, sizes.hidden)
    gated, window, taps = bench.normal(lanes, width, wide), bench.normal(lanes, width + 9, wide), bench.normal(wide, 4)
    stored = Fp8(
        bench.normal(table_rows, sizes.hidden // heads).to(torch.float8_e4m3fn), bench.normal(1, dtype=torch.bfloat16)
    )
    places = torch.randint(table_rows, (rows, heads), generator=bench.draws, device=bench.device)
    shape = f"{lanes} × {width}"
    yield _Case(
        f"n-gram lookup fp8 {shape}", [lambda: operators.ngram_lookup(NgramTable(stored), places, sizes.dtype)], 0
    )
    yield _Case(f"n-gram gate {shape}", [lambda: operators.gate_streams(key, key, value)], 0)
    yield _Case(f"n-gram convolution {shape}", [lambda: operators.dilated_conv(gated, window, taps, 3)], 0)


def _experts(bench: _Bench) -> Iterator[_Case]:
    """Random bytes are as good as any: every code is a number, and scales stay finite."""
    sizes, operators = bench.sizes, bench.ops

    def stored(outputs: int, inputs: int) -> Nvfp4:
        shape = (sizes.experts, outputs)
        packed = torch.randint(
            256, (*shape, inputs // 2), generator=bench.draws, device=bench.device, dtype=torch.uint8
        )
        scale = torch.randint(
            64, (*shape, inputs // BLOCK), generator=bench.draws, device=bench.device, dtype=torch.uint8
        )
        return Nvfp4(packed, scale.view(torch.float8_e4m3fn), torch.full((sizes.experts,), 0.01, device=bench.device))

    weights = Experts(stored(sizes.ffn, sizes.hidden), stored(sizes.ffn, sizes.hidden), stored(sizes.hidden, sizes.ffn))
    expert_bytes = 3 * sizes.hidden * sizes.ffn * 9 // 16
    for rows in sizes.expert_rows:
        x = bench.normal(rows, sizes.hidden)
        routings = [operators.route(bench.normal(rows, sizes.experts), sizes.choices) for _ in range(sizes.layers)]
        read = sum(len(routing.experts.unique()) for routing in routings) * expert_bytes // len(routings)
        calls: list[Work] = [lambda r=routing, x=x: operators.experts(x, r, weights) for routing in routings]
        yield _Case(f"experts nvfp4 {rows}", calls, read)


def _attention(bench: _Bench, lanes: int, width: int, context: int) -> Iterator[_Case]:
    """Selection over the whole context, and attention over what it selects; pages lie in a random order."""
    sizes, sparse = bench.sizes, bench.ops.sparse
    per_lane = -(-(context + width) // PAGE_TOKENS)
    pages = lanes * per_lane
    tables = torch.randperm(pages, generator=bench.draws, device=bench.device).view(lanes, per_lane).int()
    rows = bench.lanes(lanes, width, context)
    interval = Interval(rows.slots, rows.lengths, rows.counts, tables)
    index_query = bench.normal(lanes, width, sizes.index_heads, sizes.index_dim)
    index_pages = bench.normal(pages + 1, PAGE_TOKENS, sizes.index_dim // 4)
    shape = f"{lanes} × {width} at {context}"

    def select() -> Tensor:
        return sparse.select_positions(index_query, index_pages, interval, sizes.budget)

    read = index_pages[:-1].numel() * index_pages.element_size() if context > sizes.budget else 0
    yield _Case(f"select {shape}", [select], read)
    entry = (sizes.kv_heads, pages + 1, PAGE_TOKENS, sizes.head_dim)
    keys, values = (bench.normal(*entry).permute(1, 2, 0, 3) for _ in range(2))
    query, selection = bench.normal(lanes, width, sizes.query_heads, sizes.head_dim), select()
    seen = int((selection >= 0).sum())
    calls: list[Work] = [lambda: sparse.sparse_attend(query, keys, values, selection, interval, sizes.head_dim**-0.5)]
    yield _Case(f"attend {shape}", calls, 2 * seen * sizes.kv_heads * sizes.head_dim * keys.element_size())
    if context == sizes.contexts[0]:
        yield _absorb(bench, interval, index_pages, shape)


def _absorb(bench: _Bench, interval: Interval, index_pages: Tensor, shape: str) -> _Case:
    sizes, lanes, width = bench.sizes, len(interval.slots), int(interval.counts[0])
    ring = bench.normal(lanes + 1, 12, sizes.index_dim)
    tags = torch.zeros(lanes + 1, 12, dtype=torch.int64, device=bench.device)
    stream = IndexStream(ring, tags, index_pages, bench.normal(sizes.index_dim), 1e-6)
    raw, turn = (
        bench.normal(lanes, width, sizes.index_dim),
        bench.normal(lanes * -(-width // 4), 1, sizes.index_dim // 2),
    )
    return _Case(f"absorb keys {shape}", [lambda: bench.ops.sparse.absorb_keys(raw, stream, interval, turn, turn)], 0)
