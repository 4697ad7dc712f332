"""Times the CPU operators on SmolLM2-135M's shapes: `python -m flare.bench.operators`.

Cases of a table run interleaved and each cell is a median, so a busy neighbour slows all cases alike and the ratios
hold. A cell is the time of all layers of one round, in milliseconds.
"""

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from flare import ops
from flare.ops.operators import Operators

LAYERS, HIDDEN, FFN, VOCAB, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 30, 576, 1536, 49152, 9, 3, 64
LAYER_LINEARS = ((960, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN))
REPEATS = 7
Case = Callable[[], object]


def medians_ms(cases: dict[str, Case]) -> dict[str, float]:
    """Median time of each case over interleaved repeats, one warm-up first."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(REPEATS + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if repeat:
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}


def linear_cases(operators: Operators) -> dict[str, Callable[[int], Case]]:
    """All linears of the model in each form, as a function of the rows."""
    shapes = [shape for _ in range(LAYERS) for shape in LAYER_LINEARS] + [(VOCAB, HIDDEN)]
    weights = [torch.randn(shape).mul_(0.03) for shape in shapes]
    forms: dict[str, tuple[torch.dtype, str]] = {
        "dense bfloat16": (torch.bfloat16, "dense"),
        "dense float32": (torch.float32, "dense"),
        "int4 bfloat16": (torch.bfloat16, "int4"),
    }

    def plain(rows: int) -> Case:
        inputs = {width: torch.randn(rows, width).bfloat16() for width in (HIDDEN, FFN)}
        return lambda: [functional.linear(inputs[weight.shape[1]], weight) for weight in narrow]

    def form(dtype: torch.dtype, linear_format: str) -> Callable[[int], Case]:
        packs = [operators.pack_linear(weight.to(dtype), linear_format) for weight in weights]

        def case(rows: int) -> Case:
            inputs = {width: torch.randn(rows, width).to(dtype) for width in (HIDDEN, FFN)}
            return lambda: [operators.linear(inputs[packed.columns], packed) for packed in packs]

        return case

    narrow = [weight.bfloat16() for weight in weights]
    return {"plain bfloat16": plain} | {name: form(*arguments) for name, arguments in forms.items()}


def attention_case(operators: Operators, dtype: torch.dtype, context: int, width: int) -> Case:
    """Attention of all layers for one lane whose last row ends the context."""
    pages = -(-context // 64)
    shape = (pages + 1, 64, KEY_HEADS, HEAD_DIM)
    pools = [(torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)) for _ in range(LAYERS)]
    q = torch.randn(1, width, QUERY_HEADS, HEAD_DIM).to(dtype)
    table, length, count = torch.arange(pages)[None].int(), torch.tensor([context - width]), torch.tensor([width])
    return lambda: [
        operators.paged_attention(q, keys, values, table, length, count, HEAD_DIM**-0.5) for keys, values in pools
    ]


def small_case(operators: Operators, dtype: torch.dtype, rows: int) -> Case:
    """Norms, rotary positions, page writes and gates of all layers."""
    hidden, weight = torch.randn(rows, HIDDEN).to(dtype), torch.ones(HIDDEN, dtype=dtype)
    fused, gate_up = torch.randn(rows, 15, HEAD_DIM).to(dtype), torch.randn(rows, 2 * FFN).to(dtype)
    pages, index = torch.zeros(9, 64, KEY_HEADS, HEAD_DIM, dtype=dtype), torch.arange(rows)
    table = operators.rotary_table(512, HEAD_DIM, 1e5, dtype)
    q, k, v = fused.split((QUERY_HEADS, KEY_HEADS, KEY_HEADS), dim=1)

    def layers() -> None:
        turns = operators.rotary_rows(table, index)
        for _ in range(LAYERS):
            operators.add_rms_norm(hidden, hidden, weight, 1e-5)
            operators.write_pages(operators.apply_rotary(q, k, *turns)[1], v, pages, pages, index)
            operators.add_rms_norm(hidden, hidden, weight, 1e-5)
            operators.silu_mul(gate_up)
            hidden.zero_()

    return layers


def table(title: str, columns: list[int], rows: dict[str, list[float]]) -> Table:
    """One line per case; each cell also relative to the line's first."""
    result = Table("ms (ratio to the first column)", *map(str, columns), title=title)
    for name, cells in rows.items():
        result.add_row(name, *(f"{cell:.2f} ({cell / cells[0]:.2f})" for cell in cells))
    return result


def main() -> None:
    """Print the three tables."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    operators, console = ops.load("cpu"), Console()
    sizes = [1, 4, 8, 16]
    forms = linear_cases(operators)
    taken = medians_ms({f"{name} {rows}": form(rows) for name, form in forms.items() for rows in sizes})
    lines = {name: [taken[f"{name} {rows}"] for rows in sizes] for name in forms}
    console.print(table("all linears, by rows", sizes, lines))
    dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    settings = [(name, context) for name in dtypes for context in (64, 256, 2048)]
    lines = {
        f"{name}, context {context}": list(
            medians_ms(
                {str(width): attention_case(operators, dtypes[name], context, width) for width in sizes}
            ).values()
        )
        for name, context in settings
    }
    console.print(table("attention of all layers, by width", sizes, lines))
    lines = {
        name: list(medians_ms({str(rows): small_case(operators, dtype, rows) for rows in sizes}).values())
        for name, dtype in dtypes.items()
    }
    console.print(table("norms, rotary, page writes and gates of all layers, by rows", sizes, lines))


if __name__ == "__main__":
    main()
