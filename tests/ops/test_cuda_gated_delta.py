"""The CUDA gated delta rule and its convolution: every count, boundary and mixture of lanes; blind to poison."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flare.ops.gated_delta import DeltaInputs, DeltaRecords, cpu
from flare.ops.gated_delta import cuda_chunked as chunked
from flare.ops.short_conv import Boundary, LaneRows
from flare.ops.short_conv import cpu as conv_cpu
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

cuda = pytest.importorskip("flare.ops.gated_delta.cuda")

# Triton's interpreter turns a loop bound that was loaded into a number in a way NumPy will not allow for ever.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

SMALL, SMALLEST = (2, 4, 12, 20), (1, 2, 12, 6)  # Hk, Hv, Dk, Dv
REAL = (16, 48, 128, 128)
# Sums of Dk ≤ 128 terms in float32, over eight rows.
MATRIX = 4e-6
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def tensor(values: list[int]) -> Tensor:
    return torch.tensor(values, device=DEVICE)


def on_cpu(item: DeltaInputs | LaneRows | Boundary | DeltaRecords):
    return replace(item, **{name: getattr(item, name).cpu() for name in item.__dataclass_fields__})


def lane_rows(slots: list[int], counts: list[int], lengths: list[int]) -> LaneRows:
    return LaneRows(tensor(slots), tensor(lengths), tensor(counts))


def problem(heads: tuple[int, ...], counts: list[int], width: int, dtype: torch.dtype) -> tuple[DeltaInputs, Tensor]:
    """Operands with NaN in inactive rows; a matrix for each lane, NaN in one row more (null), and two snapshot rows."""
    key_heads, value_heads, key_dim, value_dim = heads
    shapes = [(2 * key_heads * key_dim + value_heads * value_dim,), (value_heads,), (value_heads,)]
    rows = [draw(len(counts), width, *shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    for lane, count in enumerate(counts):
        for operand in rows:
            operand[lane, count:] = torch.nan
    gates = [draw(value_heads, dtype=dtype, seed=seed) for seed in (7, 8)]
    matrix = draw(len(counts) + 3, value_heads, value_dim, key_dim, seed=9)
    matrix[len(counts)] = torch.nan
    return DeltaInputs(*rows, *gates), matrix


def empty_records(heads: tuple[int, ...], lanes: int, width: int, dtype: torch.dtype = torch.float32) -> DeltaRecords:
    key_heads, value_heads, key_dim, value_dim = heads
    shapes = (value_heads, value_dim), (key_heads, key_dim), (value_heads,)
    return DeltaRecords(*(torch.full((lanes, width, *s), torch.nan, dtype=dtype, device=DEVICE) for s in shapes))


def exact_verify(inputs: DeltaInputs, matrix: Tensor, lanes: LaneRows, records: DeltaRecords) -> Tensor:
    """The CPU operator in float64; its output still has the dtype of the operands."""
    return cpu.verify(on_cpu(inputs), matrix.cpu().double(), on_cpu(lanes), records)


@every_dtype
@pytest.mark.parametrize(("width", "heads"), [(1, SMALL), (3, SMALL), (8, SMALLEST)])
def test_all_counts_side_by_side_equal_the_cpu_in_every_form(
    width: int, heads: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    counts = [*range(width + 1), width]
    lengths = [3 * (lane % 3) for lane in range(len(counts))]
    inputs, matrix = problem(heads, counts, width, dtype)
    slots = [lane if count else len(counts) for lane, count in enumerate(counts)]
    for lane, length in enumerate(lengths):
        if length == 0:
            matrix[lane] = torch.nan  # what an earlier request left
    lanes, before = lane_rows(slots, counts, lengths), matrix.clone()
    records = empty_records(heads, len(counts) + 1, 9)
    exact = on_cpu(empty_records(heads, len(counts), 9, torch.float64))
    output, expected = cuda.verify(inputs, matrix, lanes, records), exact_verify(inputs, matrix, lanes, exact)
    assert torch.equal(matrix.nan_to_num(9), before.nan_to_num(9))
    assert error(output, expected) < tolerance
    for made, wanted in zip((records.corrections, records.keys, records.decays), vars(exact).values(), strict=True):
        made = made[: len(counts)].cpu()
        assert torch.equal(made.isnan(), wanted.isnan())
        assert error(made.nan_to_num(0), wanted.nan_to_num(0)) < MATRIX
    through, columns = matrix.clone(), matrix.clone()
    assert torch.equal(cuda.prefill(inputs, through, lanes), output)
    targets = tensor([[slot] * width for slot in slots])
    assert torch.equal(cuda.verify_columns(inputs, columns, lanes, targets), output)
    cuda.commit(records, matrix, lanes)
    for other in (through, columns):
        assert torch.equal(other.nan_to_num(9), matrix.nan_to_num(9))
    wide = before.cpu().double()
    cpu.prefill(on_cpu(inputs), wide, on_cpu(lanes))
    assert error(matrix.nan_to_num(9), wide.nan_to_num(9)) < MATRIX


@pytest.mark.parametrize("width", [1, 4])
def test_every_published_prefix_and_boundary_equals_the_cpu(width: int) -> None:
    cases = [(published, stop) for published in range(width + 1) for stop in range(-1, width + 2)]
    inputs, matrix = problem(SMALLEST, [width], width, torch.float32)
    records = empty_records(SMALLEST, 1, width)
    cuda.verify(inputs, matrix, lane_rows([0], [width], [5]), records)
    for published, stop in cases:
        lanes, boundary = lane_rows([0], [published], [5]), Boundary(tensor([stop]), tensor([3]))
        made, expected, poisoned = matrix.clone(), matrix.cpu().clone(), replace(records, keys=records.keys.clone())
        poisoned.keys[:, published:] = torch.nan
        cuda.commit(poisoned, made, lanes, boundary)
        cpu.commit(on_cpu(poisoned), expected, on_cpu(lanes), on_cpu(boundary))
        assert torch.equal(made[[1, 2]].nan_to_num(9), matrix[[1, 2]].nan_to_num(9))
        for row in (0, 3):
            assert error(made[row], expected[row]) < MATRIX, (published, stop, row)
        if published == 0:
            assert torch.equal(made[0], matrix[0])
        if not 1 <= stop <= published:
            assert torch.equal(made[3], matrix[3])
        aliased = matrix.clone()
        cuda.commit(records, aliased, lanes, replace(boundary, slots=tensor([0])))
        assert torch.equal(aliased[0], made[0])


def test_a_lane_has_the_same_bits_alone_and_in_rounds_of_one_row() -> None:
    inputs, matrix = problem(SMALL, [4, 4, 4], 4, torch.float32)
    together, single = matrix.clone(), matrix.clone()
    output = cuda.prefill(inputs, together, lane_rows([0, 1, 2], [4, 4, 4], [1, 1, 1]))
    records = empty_records(SMALL, 3, 4)
    for row in range(4):
        step = replace(inputs, **{n: getattr(inputs, n)[1:2, row : row + 1] for n in ("qkv", "a", "b")})
        assert torch.equal(cuda.verify(step, single, lane_rows([1], [1], [1]), records)[0, 0], output[1, row])
        cuda.commit(records, single, lane_rows([1], [1], [1]))
    assert torch.equal(single[1], together[1])


@every_dtype
@pytest.mark.parametrize("gate", ["sigmoid", "silu"])
@pytest.mark.parametrize("narrow", [True, False])
def test_gated_norm_equals_the_cpu(narrow: bool, gate: str, dtype: torch.dtype, tolerance: float) -> None:
    o, z = draw(3, 5, 6, 20, dtype=dtype), draw(3, 5, 6, 20, dtype=dtype, seed=1)
    weight = draw(20, dtype=dtype if narrow else torch.float32, seed=2)
    expected = cpu.gated_norm(o.cpu(), z.cpu(), weight.cpu(), 1e-6, gate)
    made = cuda.gated_norm(o, z, weight, 1e-6, gate)
    assert made.dtype == dtype
    assert error(made, expected) < tolerance


@every_dtype
@pytest.mark.parametrize(("width", "taps"), [(1, 4), (3, 2), (4, 4)])
def test_the_convolution_and_its_history_equal_the_cpu(
    width: int, taps: int, dtype: torch.dtype, tolerance: float
) -> None:
    channels, null = 600, 4  # more than a program's block
    buffer = draw(6, 8, channels, dtype=dtype)
    x, weight = buffer[:4, :width], draw(channels, taps, dtype=dtype, seed=1)
    history = draw(null + 3, taps - 1, channels, dtype=dtype, seed=2)
    history[null], history[1] = torch.nan, torch.nan  # slot 1 holds what an earlier request left
    x[2], x[3, width - 1] = torch.nan, torch.nan
    active = lane_rows([2, 1, null, 0], [width, width, 0, width - 1], [5, 0, 3, 2])
    y = cuda.short_conv(x, weight, history, active)
    expected = conv_cpu.short_conv(x.cpu(), weight.cpu(), history.cpu(), on_cpu(active))
    assert error(y, expected) < tolerance
    assert y[2].eq(0).all() and y[3, width - 1].eq(0).all()
    for published in range(width + 1):
        for stop in range(width + 2):
            lanes = replace(active, counts=tensor([published, width - published, 0, 0]))
            boundary = Boundary(tensor([stop] * 4), tensor([null + 1, null + 2, null + 1, 0]))
            made, wanted = history.clone(), history.cpu().clone()
            cuda.shift_history(x, made, lanes, boundary)
            conv_cpu.shift_history(x.cpu(), wanted, on_cpu(lanes), on_cpu(boundary))
            assert torch.equal(made.cpu().nan_to_num(9), wanted.nan_to_num(9)), (published, stop)


def test_a_boundary_in_the_lanes_own_slot_leaves_the_final_history() -> None:
    x, history = draw(1, 3, 8), draw(2, 3, 8, seed=1)
    lanes, aliased = lane_rows([0], [3], [4]), history.clone()
    cuda.shift_history(x, aliased, lanes, Boundary(tensor([1]), tensor([0])))
    cuda.shift_history(x, history, lanes)
    assert torch.equal(aliased, history)


def recurrence(q: Tensor, k: Tensor, v: Tensor, **named) -> tuple[Tensor, Tensor]:
    """What fla-core's function computes, with its arguments: a row at a time."""
    state, outputs = named["initial_state"].clone(), []
    for row in range(q.shape[1]):
        expanded = [
            torch.nn.functional.normalize(x[:, row].float(), dim=-1, eps=1e-6).repeat_interleave(
                v.shape[2] // x.shape[2], 1
            )
            for x in (q, k)
        ]
        state = state * named["g"][:, row].exp()[..., None, None]
        error = v[:, row].float() - (state @ expanded[1].unsqueeze(-1)).squeeze(-1)
        state = state + (named["beta"][:, row, :, None].float() * error).unsqueeze(-1) * expanded[1].unsqueeze(-2)
        outputs.append((state @ expanded[0].unsqueeze(-1)).squeeze(-1) * named["scale"])
    assert named["state_v_first"] and named["output_final_state"] and named["use_qk_l2norm_in_kernel"]
    return torch.stack(outputs, 1), state


def test_chunked_prefill_passes_inactive_rows_by_and_keeps_idle_lanes() -> None:
    counts, lengths = [5, 0, 3, 1], [2, 4, 0, 0]
    inputs, matrix = problem(SMALL, counts, 5, torch.float32)
    matrix[2] = torch.nan
    lanes, plain = lane_rows([0, 1, 2, 3], counts, lengths), matrix.clone()
    made = chunked.prefill_chunked(inputs, matrix, lanes, recurrence)
    expected = cuda.prefill(inputs, plain, lanes)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(matrix, plain, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert torch.equal(matrix[1], plain[1])


@pytest.mark.gpu
@pytest.mark.parametrize(("lanes_count", "width"), [(1, 1), (1, 8), (4, 6), (1, 200)])
def test_real_geometry_equals_float64(lanes_count: int, width: int) -> None:
    counts, lengths = [width] * lanes_count, [5] * lanes_count
    inputs, matrix = problem(REAL, counts, width, torch.bfloat16)
    lanes = lane_rows(list(range(lanes_count)), counts, lengths)
    wide, through, records = matrix.cpu().double(), matrix.clone(), empty_records(REAL, lanes_count, width)
    expected = cpu.prefill(on_cpu(inputs), wide, on_cpu(lanes))
    recurrent = cuda._steps("prefill", inputs, through, lanes)
    # Both outputs are rounded to bfloat16: 2^−9 each at most.
    assert error(recurrent, expected) < 2**-8
    assert error(through[:lanes_count], wide[:lanes_count]) < MATRIX
    assert error(cuda.verify(inputs, matrix, lanes, records), expected) < 2**-8
    committed = matrix.clone()
    cuda.commit(records, committed, lanes)
    assert torch.equal(committed[:lanes_count], through[:lanes_count])
    kernel = chunked.chunked_kernel()
    if kernel is not None and width >= chunked.FEWEST_ROWS:
        # fla-core's products are bfloat16; 3.4·10⁻³ is what it differed by when it was measured alone.
        assert error(chunked.prefill_chunked(inputs, matrix, lanes, kernel), expected) < 1e-2
        assert error(matrix[:lanes_count], wide[:lanes_count]) < 5e-3
