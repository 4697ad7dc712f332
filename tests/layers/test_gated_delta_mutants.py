"""Broken gated delta layers must not pass for the real one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flare.layers.gated_delta import GatedDelta
from flare.layers.gated_delta_columns import GatedDeltaColumns
from flare.ops.gated_delta import DeltaInputs, DeltaOperators, DeltaRecords
from flare.ops.gated_delta.cpu import DELTA
from flare.ops.short_conv import LaneRows
from tests.layers.gated_delta_bench import Bench, bench, inputs, single_steps

PROMPT = 5
FORMS = [GatedDelta, GatedDeltaColumns]


def check(form: type[GatedDelta], delta: DeltaOperators | None = None) -> None:
    """Prefill, a round with rejections, a narrow round and an untouched one, against single steps of the real layer."""
    x = inputs(PROMPT + 12, 1)
    steps, core = single_steps(x), bench(form, delta=delta)
    core.prefill(2, 0, x[:PROMPT], 16)
    length = PROMPT
    for width, emitted in ((6, 3), (1, 1), (8, 0), (4, 4)):
        rejected = 9 * inputs(width - emitted, 2)
        before = core.reachable(2)
        y = core.verify([2], [length], [torch.cat((x[length : length + emitted], rejected))], 8)[0]
        close(core.reachable(2), before)
        torch.testing.assert_close(y[:emitted], steps.outputs[length : length + emitted], atol=1e-10, rtol=1e-10)
        core.commit([emitted])
        length += emitted
        close(core.reachable(2), steps.states[length])


def close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-10)


def changed_rows(operator: Callable, change: Callable[[LaneRows], LaneRows], place: int) -> Callable:
    """The operator, with its lanes (argument `place`) changed."""

    def call(*args: Any) -> Any:
        return operator(*(change(value) if index == place else value for index, value in enumerate(args)))

    return call


def changed_inputs(operator: Callable, change: Callable[[DeltaInputs], DeltaInputs]) -> Callable:
    def call(rows: DeltaInputs, *args: Any) -> Tensor:
        return operator(change(rows), *args)

    return call


def one_less(lanes: LaneRows) -> LaneRows:
    return replace(lanes, counts=(lanes.counts - 1).clamp_min(0))


def one_more(lanes: LaneRows) -> LaneRows:
    return replace(lanes, counts=(lanes.counts + 1).clamp_max(8))


def verify_that_advances(rows: DeltaInputs, matrix: Tensor, lanes: LaneRows, records: DeltaRecords) -> Tensor:
    DELTA.verify(rows, matrix, lanes, records)
    return DELTA.prefill(rows, matrix, lanes)


def undecayed(records: DeltaRecords, matrix: Tensor, *args: Any) -> None:
    DELTA.commit(replace(records, decays=torch.ones_like(records.decays)), matrix, *args)


def raw_keys(rows: DeltaInputs, matrix: Tensor, lanes: LaneRows, records: DeltaRecords) -> Tensor:
    output = DELTA.verify(rows, matrix, lanes, records)
    records.keys.mul_(1.5)
    return output


def backwards(records: DeltaRecords, matrix: Tensor, lanes: LaneRows, boundary: None = None) -> None:
    count = int(lanes.counts[0])
    flipped = DeltaRecords(
        *(torch.cat((part[:, :count].flip(1), part[:, count:]), 1) for part in vars(records).values())
    )
    DELTA.commit(flipped, matrix, lanes)


def stale_history(x: Tensor, weight: Tensor, history: Tensor, lanes: LaneRows) -> Tensor:
    return DELTA.short_conv(x, weight, torch.zeros_like(history), lanes)


def silu_gate(o: Tensor, z: Tensor, weight: Tensor, eps: float, gate: str) -> Tensor:
    return DELTA.gated_norm(o, z, weight, eps, "silu")


def zero_centred(o: Tensor, z: Tensor, weight: Tensor, eps: float, gate: str) -> Tensor:
    return DELTA.gated_norm(o, z, 1 + weight, eps, gate)


MUTANTS = {
    "commit replays one row less": {"commit": changed_rows(DELTA.commit, one_less, 2)},
    "commit replays one row more": {"commit": changed_rows(DELTA.commit, one_more, 2)},
    "history shifts by one row less": {"shift_history": changed_rows(DELTA.shift_history, one_less, 2)},
    "history shifts by one row more": {"shift_history": changed_rows(DELTA.shift_history, one_more, 2)},
    "verification advances the live matrix": {"verify": verify_that_advances},
    "replay forgets the decay": {"commit": undecayed},
    "records keep other keys": {"verify": raw_keys},
    "replay runs backwards": {"commit": backwards},
    "the convolution ignores its history": {"short_conv": stale_history},
    "the gate is silu": {"gated_norm": silu_gate},
    "the norm is zero-centred": {"gated_norm": zero_centred},
    "step sizes and decays are swapped": {
        "verify": changed_inputs(DELTA.verify, lambda rows: replace(rows, a=rows.b, b=rows.a))
    },
}
COLUMN_MUTANTS = {
    "columns are written one row late": {
        "verify_columns": lambda rows, matrix, lanes, targets: DELTA.verify_columns(
            rows, matrix, lanes, targets.roll(1, dims=1)
        )
    },
    "every row writes the committed column": {
        "verify_columns": lambda rows, matrix, lanes, targets: DELTA.verify_columns(
            rows, matrix, lanes, lanes.slots.unsqueeze(1).expand_as(targets)
        )
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_the_real_layer_passes(form):
    check(form)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_compact_layer_fails(name):
    with pytest.raises(AssertionError):
        check(GatedDelta, replace(DELTA, **MUTANTS[name]))


@pytest.mark.parametrize("name", COLUMN_MUTANTS)
def test_a_broken_columns_layer_fails(name):
    with pytest.raises(AssertionError):
        check(GatedDeltaColumns, replace(DELTA, **COLUMN_MUTANTS[name]))


@pytest.mark.parametrize("form", FORMS)
def test_layers_read_no_tensor_on_the_host(form):
    """Above the operators nothing may wait for the device; operators themselves are exempt."""
    from tests.rounds.test_no_host_reads import NoHostReads, exempt

    core: Bench = bench(form)
    layer, x = core.layer, inputs(PROMPT + 4, 1)
    layer.delta = DeltaOperators(**{name: exempt(operator) for name, operator in vars(DELTA).items()})
    layer.linear = exempt(layer.linear)
    core.prefill(2, 0, x[:PROMPT], 16)
    core.verify([2], [PROMPT], [x[PROMPT:]], 8)
    rows, emitted = core.rows, torch.tensor([2])
    flat = torch.zeros(8, x.shape[1], dtype=x.dtype)
    with NoHostReads({-1}, declared=set()):
        layer.prefill(flat, rows)
        layer.verify(flat, rows)
        layer.commit(rows, emitted)
