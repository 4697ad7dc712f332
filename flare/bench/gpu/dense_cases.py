"""Operator cases of a dense decoder, at SmolLM2-135M's sizes."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flare.bench.gpu.visit import DRY_GEOMETRY, Sizes
from flare.contract.manifest import PAGE_TOKENS
from flare.ops.operators import Operators
from flare.ops.projection import Norm, Places

Entry = tuple[
    str, Callable[[torch.Generator], Any], Callable[[Operators, Any], Any], Callable[[Operators, Any], Any], int
]
"""Name, operands on a CPU, operands as the operators take them, the call, bytes it must move."""

REAL = {"hidden": 576, "query_heads": 9, "kv_heads": 3, "head_dim": 64, "ffn": 1536, "vocab": 49152}
EPS = 1e-5
LONG_CONTEXT = 4096


def dense_cases(dry: bool, sizes: Sizes) -> Iterator[Entry]:
    """Linears, norms, rotary, attention, gates and embedding, by rows."""
    geometry = DRY_GEOMETRY if dry else REAL
    hidden, ffn, dim = geometry["hidden"], geometry["ffn"], geometry["head_dim"]
    queries, keys = geometry["query_heads"], geometry["kv_heads"]
    shapes = {
        "qkv": ((queries + 2 * keys) * dim, hidden),
        "output": (hidden, queries * dim),
        "gate_up": (2 * ffn, hidden),
        "down": (hidden, ffn),
        "head": (geometry["vocab"], hidden),
    }
    for rows in sizes.rows:
        for name, (outputs, inputs) in shapes.items():
            yield (
                f"linear {name} rows {rows}",
                lambda g, n=outputs, k=inputs, r=rows: (normal(g, r, k), normal(g, n, k) / k**0.5),
                lambda o, a: (a[0], o.pack_linear(a[1], "dense")),
                lambda o, a: o.linear(*a),
                2 * outputs * inputs,
            )
        yield (
            f"add_rms_norm rows {rows}",
            lambda g, r=rows: (normal(g, r, hidden), normal(g, r, hidden), normal(g, hidden)),
            as_made,
            lambda o, a: o.add_rms_norm(a[0].clone(), a[1], a[2], EPS),
            0,
        )
        yield f"silu_mul rows {rows}", lambda g, r=rows: normal(g, r, 2 * ffn), as_made, lambda o, a: o.silu_mul(a), 0
        yield _heads(rows, (queries, keys, dim), hidden)
        yield (
            f"norm_gate rows {rows}",
            lambda g, r=rows: (normal(g, r, hidden), normal(g, hidden), normal(g, 2 * ffn, hidden) / hidden**0.5),
            lambda o, a: (a[0], Norm(a[1], EPS), o.pack_linear(a[2], "dense")),
            lambda o, a: o.norm_gate(*a),
            4 * ffn * hidden,
        )
        yield (
            f"embed rows {rows}",
            lambda g, r=rows: (normal(g, geometry["vocab"], hidden), torch.arange(r) * 7),
            as_made,
            lambda o, a: o.embed(*a),
            0,
        )
    widths = ((1, 1), (4, 6)) if not dry else ((1, 1), (2, 3))
    for lanes, width in widths:
        for context in (sizes.context_tokens,) if dry else (sizes.context_tokens, LONG_CONTEXT):
            yield _attention(lanes, width, context, (queries, keys, dim))


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal bfloat16."""
    return torch.randn(shape, generator=generator).bfloat16()


def pages_of(generator: torch.Generator, pages: int, heads: int, dim: int) -> Tensor:
    """Pages [pages, 64, heads, dim] as the arena lays them out, heads outermost."""
    return normal(generator, heads, pages, PAGE_TOKENS, dim).movedim(0, 2)


def as_made(operators: Operators, operands: Any) -> Any:  # noqa: ARG001  nothing depends on the operators
    """Operands that need no preparation."""
    return operands


def _heads(rows: int, heads: tuple[int, int, int], hidden: int) -> Entry:
    queries, keys, dim = heads

    def make(generator: torch.Generator) -> tuple[Tensor, ...]:
        outputs = (queries + 2 * keys) * dim
        return (
            normal(generator, rows, hidden),
            normal(generator, hidden),
            normal(generator, outputs, hidden) / hidden**0.5,
            pages_of(generator, 3, keys, dim),
            pages_of(generator, 3, keys, dim),
            torch.arange(rows) + 3,
        )

    def prepare(operators: Operators, operands: tuple[Tensor, ...]) -> tuple[Any, ...]:
        x, weight, matrix, k_pages, v_pages, index = operands
        turns = operators.rotary_rows(operators.rotary_table(256, dim, 1e5, x.dtype), index)
        # Copied after that, as turns must not be what the operator just before the projection wrote.
        places = Places(k_pages.clone(), v_pages.clone(), index)
        return x, Norm(weight, EPS), operators.pack_linear(matrix, "dense"), turns, places

    def call(operators: Operators, operands: tuple[Any, ...]) -> tuple[Tensor, ...]:
        places = operands[-1]
        return operators.project_heads(*operands), places.keys, places.values

    return f"project_heads rows {rows}", make, prepare, call, 2 * (queries + 2 * keys) * dim * hidden


def _attention(lanes: int, width: int, context: int, heads: tuple[int, int, int]) -> Entry:
    queries, keys, dim = heads
    pages = -(-(context + width) // PAGE_TOKENS)

    def make(generator: torch.Generator) -> tuple[Tensor, ...]:
        return (
            normal(generator, lanes, width, queries, dim),
            pages_of(generator, lanes * pages + 1, keys, dim),
            pages_of(generator, lanes * pages + 1, keys, dim),
            torch.randperm(lanes * pages, generator=generator).view(lanes, pages).int(),
            torch.full((lanes,), context),
            torch.full((lanes,), width),
        )

    def call(operators: Operators, operands: Any) -> Tensor:
        q, k_pages, v_pages, tables, lengths, counts = operands
        return operators.paged_attention(q, k_pages, v_pages, tables, lengths, counts, dim**-0.5)

    moved = 2 * 2 * lanes * (context + width) * keys * dim
    return f"paged_attention {lanes} x {width} context {context}", make, as_made, call, moved
