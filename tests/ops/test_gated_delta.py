"""The gated delta rule and its convolution: against outside results and the definition, blind to poison, bit-equal."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from flare.ops import curves as curves_cpu
from flare.ops.gated_delta import DeltaInputs, DeltaRecords, cpu, reference
from flare.ops.short_conv import Boundary, LaneRows
from flare.ops.short_conv import cpu as conv_cpu
from flare.ops.short_conv import reference as conv_reference

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen38"
DECODES = ["decode1", "verify4", "verify_2req_accept", "silu_gate"]
# The oracles add in float32 in another order: `max_abs_vs_checkpoint_columns` in the files is at most 1.8e-7.
STATE = {"atol": 5e-7, "rtol": 1e-6}
# A probe adds 128 of them: √128 · 1.8e-7 = 2e-6, twice over.
PROBE = {"atol": 4e-6, "rtol": 1e-6}
# A value of the gated output, below 2 in size, may land on the other side of one or two bfloat16 roundings (2^−8).
BF16 = {"atol": 2e-3, "rtol": 8e-3}
HEADS = (2, 6, 4, 5)  # Hk, Hv, Dk, Dv
NULL = 4


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def golden(name: str) -> tuple[dict[str, Tensor], dict]:
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["params"])  # noqa: SIM118


def gates(data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return data["A_log"], data["dt_bias"]


def lane_rows(slots: list[int], counts: list[int], lengths: list[int] | None = None) -> LaneRows:
    lengths = [7] * len(slots) if lengths is None else lengths
    return LaneRows(torch.tensor(slots), torch.tensor(lengths), torch.tensor(counts))


@pytest.mark.parametrize("name", DECODES)
def test_outputs_and_columns_equal_b12x(name):
    data, params = golden(f"gdn_decode_{name}")
    slots, starts = params["state_indices"], params["query_start_loc"]
    counts = [stop - start for start, stop in pairwise(starts)]
    width, heads = max(counts), params["value_heads"]

    def lanes_of(x: Tensor) -> Tensor:
        padded = x.new_full((len(counts), width, *x.shape[1:]), torch.nan)
        for lane, (start, count) in enumerate(zip(starts, counts, strict=False)):
            padded[lane, :count] = x[start : start + count]
        return padded

    initial = data["s0_u"] @ data["s0_v"].mT
    matrix = torch.cat((initial, torch.full_like(initial[:1], torch.nan)))
    sources = [row[accepted - 1] for row, accepted in zip(slots, params["num_accepted_tokens"], strict=True)]
    targets = torch.full((len(counts), width), len(initial))
    for lane, count in enumerate(counts):
        targets[lane, :count] = torch.tensor(slots[lane][:count])
    inputs = DeltaInputs(lanes_of(data["mixed_qkv"]), lanes_of(data["a"]), lanes_of(data["b"]), *gates(data))
    o = cpu.verify_columns(inputs, matrix, lane_rows(sources, counts), targets)
    y = cpu.gated_norm(o, lanes_of(data["z"]), data["norm_weight"], params["eps"], params["gate_activation"])
    rows = torch.cat([y[lane, :count] for lane, count in enumerate(counts)])
    torch.testing.assert_close(rows, data["out"], **BF16)
    torch.testing.assert_close(matrix[:-1] @ data["probe"], data["state_probe"], **PROBE)
    if "last_state" in data:
        full = matrix[slots[0][counts[0] - 1], : min(2, heads)]
        torch.testing.assert_close(full, data["last_state"], **STATE)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_records_and_replay_equal_the_checkpoint_columns_of_b12x(index):
    data, params = golden(f"gdn_recovery_{index}")
    window, key_heads, value_heads = (params[key] for key in ("window", "key_heads", "value_heads"))
    matrix = torch.stack((data["s0_u"] @ data["s0_v"].mT, torch.full((value_heads, 128, 128), torch.nan)))
    before, records = matrix.clone(), empty_records(1, window, (key_heads, value_heads, 128, 128), torch.float32)
    inputs = DeltaInputs(data["mixed_qkv"][None], data["a"][None], data["b"][None], *gates(data))
    cpu.verify(inputs, matrix, lane_rows([0], [window]), records)
    torch.testing.assert_close(matrix, before, rtol=0, atol=0, equal_nan=True)
    expanded = records.keys[0].repeat_interleave(value_heads // key_heads, 1)
    torch.testing.assert_close(expanded, data["k_hat"], **STATE)
    torch.testing.assert_close(records.corrections[0], data["correction"], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(records.decays[0], data["decay"], **STATE)
    for count in range(1, window + 1):
        committed = before.clone()
        cpu.commit(records, committed, lane_rows([0], [count]))
        torch.testing.assert_close(committed[0] @ data["probe"], data["column_probe"][count - 1], **PROBE)
        if count == params["commit_len"]:
            torch.testing.assert_close(committed[0, 0], data["committed_head0"], **STATE)
            torch.testing.assert_close(committed[0] @ data["probe"], data["committed_probe"], **PROBE)


def test_prefill_equals_b12x_and_transformers():
    data, _ = golden("gdn_cross_check")
    matrix = torch.full((2, 3, 128, 128), torch.nan)
    inputs = DeltaInputs(data["mixed_qkv"][None], data["a"][None], data["b"][None], *gates(data))
    o = cpu.prefill(inputs, matrix, lane_rows([0], [5], [0]))
    y = cpu.gated_norm(o, data["z"][None], data["norm_weight"], 1e-6, "sigmoid")[0]
    torch.testing.assert_close(o[0], data["tf_core"], **BF16)
    torch.testing.assert_close(y, data["b12x_out"], **BF16)
    torch.testing.assert_close(y, data["tf_gated"], **BF16)
    torch.testing.assert_close(matrix[0] @ data["probe"], data["b12x_state_probe"][-1], **PROBE)
    torch.testing.assert_close(matrix[0, 0].mT, data["tf_state_head0"], **STATE)


def empty_records(lanes: int, width: int, heads: tuple[int, ...], dtype: torch.dtype) -> DeltaRecords:
    key_heads, value_heads, key_dim, value_dim = heads
    shapes = (value_heads, value_dim), (key_heads, key_dim), (value_heads,)
    return DeltaRecords(*(torch.full((lanes, width, *shape), torch.nan, dtype=dtype) for shape in shapes))


def problem(dtype: torch.dtype, counts: list[int], width: int) -> tuple[DeltaInputs, Tensor]:
    """Random operands with NaN in every inactive row, and matrices with NaN in the null slot."""
    key_heads, heads, key_dim, value_dim = HEADS
    draws = torch.Generator().manual_seed(width)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64).to(dtype)

    inputs = DeltaInputs(
        normal(len(counts), width, 2 * key_heads * key_dim + heads * value_dim),
        normal(len(counts), width, heads),
        normal(len(counts), width, heads),
        normal(heads),
        normal(heads),
    )
    for lane, count in enumerate(counts):
        for rows in (inputs.qkv, inputs.a, inputs.b):
            rows[lane, count:] = torch.nan
    matrix = normal(NULL + 1, heads, value_dim, key_dim).to(torch.promote_types(dtype, torch.float32))
    matrix[NULL] = torch.nan
    return inputs, matrix


# The reference adds in another order; bfloat16 outputs may differ by one rounding (2^−8 of values below 8).
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("counts", [[1], [3, 0, 5], [5, 2, 4, 1]])
def test_every_form_equals_the_definition(dtype, tolerance, counts):
    inputs, matrix = problem(dtype, counts, 5)
    slots = [(2, 0, 3, 1)[lane] if count else NULL for lane, count in enumerate(counts)]
    lanes = lane_rows(slots, counts, [9, 4, 0, 1][: len(counts)])
    boundary = Boundary(torch.tensor([2] * len(counts)), torch.tensor([NULL] * len(counts)))
    targets = torch.tensor([slots]).T.repeat(1, 5)
    results = []
    for form in (cpu, reference):
        kept, live, columns = matrix.clone(), matrix.clone(), matrix.clone()
        records = empty_records(4, 6, HEADS, matrix.dtype)
        outputs = [
            form.verify(inputs, kept, lanes, records),
            form.prefill(inputs, live, lanes),
            form.verify_columns(inputs, columns, lanes, targets),
        ]
        assert torch.equal(kept[:NULL], matrix[:NULL])
        form.commit(records, kept, lanes, boundary)
        written = [records.corrections, records.keys, records.decays]
        results.append([*outputs, kept[:NULL], live[:NULL], columns[:NULL], *written])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    assert torch.isfinite(torch.stack(results[0][:3]).float()).all()


def test_a_float32_matrix_has_the_same_bits_in_rounds_chunks_and_beside_other_lanes():
    inputs, matrix = problem(torch.float32, [5, 5, 5], 5)
    together, chunk, single = matrix.clone(), matrix.clone(), matrix.clone()
    lanes, records = lane_rows([0, 1, 2], [5, 5, 5]), empty_records(3, 5, HEADS, torch.float32)
    outputs = [cpu.verify(inputs, together, lanes, records)[1]]
    cpu.commit(records, together, lanes)
    alone = replace(inputs, qkv=inputs.qkv[1:2], a=inputs.a[1:2], b=inputs.b[1:2])
    outputs.append(cpu.prefill(alone, chunk, lane_rows([1], [5]))[0])
    steps = []
    for row in range(5):
        step = replace(alone, **{name: getattr(alone, name)[:, row : row + 1] for name in ("qkv", "a", "b")})
        steps.append(cpu.verify(step, single, lane_rows([1], [1]), records)[0])
        cpu.commit(records, single, lane_rows([1], [1]))
    outputs.append(torch.cat(steps))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(together[1], chunk[1])
    assert torch.equal(together[1], single[1])


@pytest.mark.parametrize("stop", [0, 1, 3, 4, 5])
def test_a_boundary_slot_gets_the_state_on_the_way_and_only_when_it_is_reached(stop):
    inputs, matrix = problem(torch.float64, [5], 5)
    records = empty_records(1, 5, HEADS, torch.float64)
    cpu.verify(inputs, matrix, lane_rows([0], [5]), records)
    through, split = matrix.clone(), matrix.clone()
    cpu.commit(records, through, lane_rows([0], [4]), Boundary(torch.tensor([stop]), torch.tensor([3])))
    cpu.commit(records, split, lane_rows([0], [4]))
    assert torch.equal(through[:3], split[:3])
    expected = matrix.clone()
    if 1 <= stop <= 4:
        cpu.commit(records, expected, lane_rows([0], [stop]))
        expected[3] = expected[0]
    assert torch.equal(through[3], expected[3])
    aliased = matrix.clone()
    cpu.commit(records, aliased, lane_rows([0], [4]), Boundary(torch.tensor([stop]), torch.tensor([0])))
    assert torch.equal(aliased[0], split[0])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
@pytest.mark.parametrize("gate", ["sigmoid", "silu"])
def test_gated_norm_equals_the_definition(dtype, tolerance, gate):
    o, z = torch.randn(2, 3, 6, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.rand(8).to(dtype)
    actual, expected = (form.gated_norm(o, z, weight, 1e-6, gate) for form in (cpu, reference))
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_convolution_equals_the_definition_and_its_history_shifts_by_the_published_rows(
    dtype, tolerance, taps, width
):
    draws = torch.Generator().manual_seed(taps)
    x = torch.randn(4, width, 6, generator=draws, dtype=torch.float64).to(dtype)
    weight = torch.randn(6, taps, generator=draws, dtype=torch.float64).to(dtype)
    history = torch.randn(NULL + 1, taps - 1, 6, generator=draws, dtype=torch.float64).to(dtype)
    history[NULL], history[1] = torch.nan, torch.nan  # slot 1 holds what an earlier request left
    active = lane_rows([2, 1, NULL, 0], [width, width, 0, width - 1], [5, 0, 3, 2])
    x[2], x[3, width - 1] = torch.nan, torch.nan
    y = conv_cpu.short_conv(x, weight, history, active)
    torch.testing.assert_close(y, conv_reference.short_conv(x, weight, history, active), atol=tolerance, rtol=tolerance)
    for published in ([width, 1, 0, 0], [1, width, 0, width - 1], [0, 0, 0, 0]):
        shifted = []
        for form in (conv_cpu, conv_reference):
            after = history.clone()
            boundary = Boundary(torch.tensor([1, 2, 1, 1]), torch.tensor([3, NULL, NULL, NULL]))
            form.shift_history(x, after, replace(active, counts=torch.tensor(published)), boundary)
            shifted.append(after[:NULL])
        torch.testing.assert_close(*shifted, atol=0, rtol=0, equal_nan=True)
        assert (torch.equal(shifted[0][3], history[3])) == (published[0] == 0)
        if published[3] == 0:
            assert torch.equal(shifted[0][0], history[0])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 2e-7)])
@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus"])
def test_curves_equal_torch_and_their_bits_do_not_depend_on_position(dtype, tolerance, name):
    curve, ends = getattr(curves_cpu, name), torch.tensor([-1e4, -90.0, 0.0, 19.9, 20.0, 20.1, 90.0, 1e4])
    x = torch.cat((ends, torch.linspace(-8, 8, 171))).to(dtype)
    torch.testing.assert_close(curve(x), getattr(torch.nn.functional, name)(x), atol=tolerance, rtol=4 * tolerance)
    for start in range(0, len(x), 7):
        assert torch.equal(curve(x[start : start + 7]), curve(x)[start : start + 7])
