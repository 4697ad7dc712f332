"""Operators of this device against those of a CPU on the same numbers, and what one call costs."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flare import ops
from flare.bench.gpu.dense_cases import dense_cases
from flare.bench.gpu.sparse_cases import sparse_cases
from flare.bench.gpu.visit import Visit
from flare.device.stopwatch import median_us
from flare.ops.operators import Operators

MOST_DIFFERENCE = 2e-2  # relative L2 of bfloat16 results; most are below 5e-3
INNER = 20


class Case(NamedTuple):
    """One call.

    Attributes:
        make: operands on a CPU, from a generator; prepare: the same as an operator set takes them, done once.
        call: a run over them, its results; bytes: what it cannot avoid to move.
    """

    name: str
    make: Callable[[torch.Generator], Any]
    prepare: Callable[[Operators, Any], Any]
    call: Callable[[Operators, Any], Any]
    bytes: int


def measure(visit: Visit) -> dict[str, Any]:
    """Every case; one that fails says why and the others go on. Not `ok` where a result is not the CPU's."""
    here, there = ops.load("cpu"), ops.load(visit.device)
    found = [measured(visit, case, here, there) for case in cases(visit)]
    wrong = [entry for entry in found if not entry.get("relative_l2", 0.0) <= MOST_DIFFERENCE or "error" in entry]
    return {"ok": not wrong, "wrong": wrong, "cases": found}


def cases(visit: Visit) -> Iterator[Case]:
    """Those of both recipes."""
    for entry in (*dense_cases(visit.dry, visit.sizes), *sparse_cases(visit.dry)):
        yield Case(*entry)


def measured(visit: Visit, case: Case, here: Operators, there: Operators) -> dict[str, Any]:
    """Relative L2 difference and microseconds of one case."""
    operands = case.make(torch.Generator().manual_seed(17))
    entry: dict[str, Any] = {"case": case.name}
    try:
        moved = case.prepare(there, carried(operands, visit.device))
        found, wanted = case.call(there, moved), case.call(here, case.prepare(here, operands))
        entry["relative_l2"] = relative_l2(flat(found), flat(wanted))
        entry["us"] = median_us(
            visit.watch, lambda: case.call(there, moved), inner=2 if visit.dry else INNER, replays=visit.sizes.replays
        )
    except Exception as error:  # noqa: BLE001  the other operators are worth measuring all the same
        entry["error"] = repr(error)
    if case.bytes and "us" in entry:
        entry["bytes_per_s"] = case.bytes / entry["us"] * 1e6
    return entry


def carried(value: Any, device: str) -> Any:
    """The same operands on a device, strides kept."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: carried(getattr(value, field.name), device) for field in fields(value)})
    if isinstance(value, tuple | list):
        return tuple(carried(each, device) for each in value)
    return value


def flat(value: Any) -> Tensor:
    """All results as one vector."""
    found = value if isinstance(value, tuple | list) else (value,)
    return torch.cat([each.detach().cpu().double().flatten() for each in found])


def relative_l2(found: Tensor, wanted: Tensor) -> float:
    """Length of the difference over the length of what is right."""
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))
