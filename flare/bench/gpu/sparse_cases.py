"""Operator cases of Qwen3.8: recurrence, sparse attention, experts, streams, at the sizes of one real layer."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flare.bench.gpu.dense_cases import Entry, as_made, normal, pages_of
from flare.contract.manifest import PAGE_TOKENS
from flare.ops.formats.nvfp4 import Nvfp4, quantise_nvfp4
from flare.ops.gated_delta import DeltaInputs, DeltaRecords
from flare.ops.moe import Experts
from flare.ops.operators import Operators
from flare.ops.short_conv import LaneRows
from flare.ops.sparse_attention import Interval

REAL = {"key_heads": 16, "value_heads": 48, "dim": 128, "hidden": 2560, "experts": 64, "top_k": 10, "ffn": 640}
SMALL = {"key_heads": 2, "value_heads": 4, "dim": 16, "hidden": 64, "experts": 8, "top_k": 2, "ffn": 32}
SHAPES = ((1, 1), (4, 1), (4, 6), (1, 8))
CONTEXT, BUDGET = 4096, 2048


def sparse_cases(dry: bool) -> Iterator[Entry]:
    """Verification, commit and prefill of the gated delta rule; experts in NVFP4; selection and sparse attention."""
    geometry = SMALL if dry else REAL
    for lanes, width in ((1, 1), (2, 3)) if dry else SHAPES:
        yield _delta("verify", lanes, width, geometry)
        yield _delta("verify and commit", lanes, width, geometry)
        yield _experts(lanes * width, geometry)
        yield _attend(lanes, width, 128 if dry else CONTEXT, 32 if dry else BUDGET)
    yield _delta("prefill", 1, 16 if dry else 512, geometry)


def _delta(what: str, lanes: int, width: int, geometry: dict[str, int]) -> Entry:
    keys, values, dim = geometry["key_heads"], geometry["value_heads"], geometry["dim"]

    def make(generator: torch.Generator) -> tuple[Any, ...]:
        inputs = DeltaInputs(
            qkv=normal(generator, lanes, width, (2 * keys + values) * dim),
            a=normal(generator, lanes, width, values),
            b=normal(generator, lanes, width, values),
            a_log=normal(generator, values) / 4,
            dt_bias=normal(generator, values) / 4,
        )
        records = DeltaRecords(
            corrections=torch.zeros(lanes, width, values, dim),
            keys=torch.zeros(lanes, width, keys, dim),
            decays=torch.zeros(lanes, width, values),
        )
        matrix = torch.randn(lanes + 1, values, dim, dim, generator=generator) / dim
        rows = LaneRows(torch.arange(lanes), torch.full((lanes,), 9), torch.full((lanes,), width))
        return inputs, matrix, rows, records

    def verify(operators: Operators, operands: Any) -> tuple[Tensor, ...]:
        inputs, matrix, rows, records = operands
        return operators.delta.verify(inputs, matrix, rows, records), records.corrections

    def commit(operators: Operators, operands: Any) -> tuple[Tensor, ...]:
        inputs, matrix, rows, records = operands
        output = operators.delta.verify(inputs, matrix, rows, records)
        operators.delta.commit(records, matrix, rows, None)
        return output, matrix[:-1]

    def prefill(operators: Operators, operands: Any) -> tuple[Tensor, ...]:
        inputs, matrix, rows, _ = operands
        return operators.delta.prefill(inputs, matrix, rows), matrix[:-1]

    calls: dict[str, Callable[..., Any]] = {"verify": verify, "verify and commit": commit, "prefill": prefill}
    return f"delta {what} {lanes} x {width}", make, as_made, calls[what], 4 * lanes * values * dim * dim


def _experts(rows: int, geometry: dict[str, int]) -> Entry:
    count, hidden, ffn, top_k = (geometry[name] for name in ("experts", "hidden", "ffn", "top_k"))

    def make(generator: torch.Generator) -> tuple[Any, ...]:
        return normal(generator, rows, hidden), normal(generator, rows, count), _stored(generator, count, hidden, ffn)

    def call(operators: Operators, operands: Any) -> Tensor:
        x, logits, experts = operands
        return operators.experts(x, operators.route(logits, top_k), experts)

    return f"experts nvfp4 rows {rows}", make, as_made, call, min(rows * top_k, count) * 3 * hidden * ffn * 9 // 16


def _stored(generator: torch.Generator, count: int, hidden: int, ffn: int) -> Experts:
    def stored(outputs: int, inputs: int) -> Nvfp4:
        return quantise_nvfp4(torch.randn(count, outputs, inputs, generator=generator) / inputs**0.5)

    return Experts(stored(ffn, hidden), stored(ffn, hidden), stored(hidden, ffn))


def _attend(lanes: int, width: int, context: int, budget: int) -> Entry:
    heads, keys, dim, index_heads, index_dim = (24, 2, 256, 4, 128) if context == CONTEXT else (4, 2, 16, 2, 16)
    pages = -(-(context + width) // PAGE_TOKENS)

    def make(generator: torch.Generator) -> tuple[Any, ...]:
        interval = Interval(
            slots=torch.arange(lanes),
            lengths=torch.full((lanes,), context),
            counts=torch.full((lanes,), width),
            page_tables=torch.arange(lanes * pages).view(lanes, pages).int(),
        )
        return (
            normal(generator, lanes, width, heads, dim),
            pages_of(generator, lanes * pages + 1, keys, dim),
            pages_of(generator, lanes * pages + 1, keys, dim),
            normal(generator, lanes, width, index_heads, index_dim),
            normal(generator, lanes * pages + 1, PAGE_TOKENS, index_dim // 4),
            interval,
        )

    def call(operators: Operators, operands: Any) -> Tensor:
        q, k_pages, v_pages, index_q, index_pages, interval = operands
        selection = operators.sparse.select_positions(index_q, index_pages, interval, budget)
        return operators.sparse.sparse_attend(q, k_pages, v_pages, selection, interval, dim**-0.5)

    return f"select and attend {lanes} x {width} context {context}", make, as_made, call, 0
