"""CUDA row copies: one launch for a pair or two, else all pairs in one, over a table of their addresses made once.

A pair is described by what an entry is in memory: runs of dense bytes at one distance. The table lies on the device, so
a graph holds one launch however many pairs there are; but it must be there before a capture, so a few pairs, which may
be a round's own tensors, are launched by themselves. Programs of lanes that copy nothing leave at once.
"""

# Launch options and constants of kernels are Triton's own, which a type checker does not know.
# pyright: reportArgumentType=false, reportReturnType=false

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_FEW_PAIRS = 2
_UNITS: dict[int, torch.dtype] = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


class _Pair(NamedTuple):
    """Addresses and distances in bytes; both entries are `runs` dense runs of `run` bytes."""

    source: int
    target: int
    source_row: int
    target_row: int
    source_run: int
    target_run: int
    runs: int
    run: int


def copy_rows(tables: Sequence[tuple[Tensor, Tensor]], source: Tensor, target: Tensor, chosen: Tensor) -> None:
    """See the card."""
    if len(tables) <= _FEW_PAIRS:
        for pair in tables:
            _copy_alone(pair, source, target, chosen)
        return
    pairs = tuple(_described(*pair) for pair in tables)
    described, unit, programs = _table(pairs, source.device)
    sizes = {"UNIT": unit, "FIELDS": len(_Pair._fields), "BLOCK": _BLOCK}
    grid = (len(pairs), source.shape[0], programs)
    _copy[grid](described, source, target, chosen, _witness(unit, source.device), **sizes)


def _copy_alone(pair: tuple[Tensor, Tensor], source: Tensor, target: Tensor, chosen: Tensor) -> None:
    """One pair, its addresses and distances in elements given with the launch."""
    read, written = pair
    _described(read, written)
    runs, run, read_run = _runs(read)
    grid = (source.shape[0], runs * triton.cdiv(run, _BLOCK))
    distances = (read.stride(0), written.stride(0), read_run, _runs(written)[2])
    _copy_pair[grid](read, written, source, target, chosen, *distances, run, BLOCK=_BLOCK)


def _described(source: Tensor, target: Tensor) -> _Pair:
    assert source.shape[1:] == target.shape[1:], (source.shape, target.shape)
    assert source.dtype == target.dtype, (source.dtype, target.dtype)
    size = source.element_size()
    runs, run, source_run = _runs(source)
    assert (runs, run) == _runs(target)[:2], "entries of a pair are laid out alike"
    return _Pair(
        source.data_ptr(),
        target.data_ptr(),
        source.stride(0) * size,
        target.stride(0) * size,
        source_run * size,
        _runs(target)[2] * size,
        runs,
        run * size,
    )


def _runs(table: Tensor) -> tuple[int, int, int]:
    """An entry as dense runs: how many, elements of each, elements from one to the next."""
    axes = sorted((stride, size) for stride, size in zip(table.stride()[1:], table.shape[1:], strict=True) if size > 1)
    run = 1
    while axes and axes[0][0] == run:
        run *= axes.pop(0)[1]
    runs, distance = 1, axes[0][0] if axes else 0
    while axes and axes[0][0] == runs * distance:
        runs *= axes.pop(0)[1]
    assert not axes, f"an entry of strides {table.stride()} is no row of dense runs"
    return runs, run, distance


@lru_cache(maxsize=64)
def _table(pairs: tuple[_Pair, ...], device: torch.device) -> tuple[Tensor, int, int]:
    """The pairs on the device, the widest unit of bytes that divides everything, and programs per pair and lane."""
    unit = 8
    for pair in pairs:
        for field, value in zip(_Pair._fields, pair, strict=True):
            if field != "runs":
                unit = gcd(unit, value)
    programs = max(pair.runs * triton.cdiv(pair.run // unit, _BLOCK) for pair in pairs)
    return torch.tensor(pairs, dtype=torch.int64, device=device), unit, programs


@lru_cache(maxsize=8)
def _witness(unit: int, device: torch.device) -> Tensor:
    """A tensor whose only use is its element type: addresses in the table take it."""
    return torch.zeros(1, dtype=_UNITS[unit], device=device)


@triton.jit
def _copy(
    table_ptr, source_ptr, target_ptr, chosen_ptr, witness_ptr,
    UNIT: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pair, lane, program = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if tl.load(chosen_ptr + lane) != 0:
        entry = table_ptr + pair * FIELDS
        runs, units = tl.load(entry + 6), tl.load(entry + 7) // UNIT
        blocks = tl.cdiv(units, BLOCK)
        run = program // blocks
        if run < runs:
            offsets = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
            inside = offsets < units
            read = tl.load(entry) + tl.load(source_ptr + lane) * tl.load(entry + 2) + run * tl.load(entry + 4)
            written = tl.load(entry + 1) + tl.load(target_ptr + lane) * tl.load(entry + 3) + run * tl.load(entry + 5)
            pointer = witness_ptr.dtype
            values = tl.load(read.to(pointer) + offsets, mask=inside)
            tl.store(written.to(pointer) + offsets, values, mask=inside)


@triton.jit
def _copy_pair(
    read_ptr, written_ptr, source_ptr, target_ptr, chosen_ptr,
    read_row, written_row, read_run, written_run, run_size, BLOCK: tl.constexpr,
):  # fmt: skip
    lane, program = tl.program_id(0), tl.program_id(1)
    if tl.load(chosen_ptr + lane) != 0:
        blocks = tl.cdiv(run_size, BLOCK)
        run = program // blocks
        offsets = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < run_size
        read = read_ptr + tl.load(source_ptr + lane) * read_row + run * read_run
        written = written_ptr + tl.load(target_ptr + lane) * written_row + run * written_run
        tl.store(written + offsets, tl.load(read + offsets, mask=inside), mask=inside)
