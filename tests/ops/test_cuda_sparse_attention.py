"""CUDA sparse attention: equal to the CPU, ties and all, blind to poison, in pieces or whole."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from flare.ops.sparse_attention import IndexStream, Interval, cpu
from tests.goldens import golden
from tests.ops.test_sparse_attention import batch
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

cuda = pytest.importorskip("flare.ops.sparse_attention.cuda")
cuda_attend = pytest.importorskip("flare.ops.sparse_attention.cuda_attend")
cuda_select = pytest.importorskip("flare.ops.sparse_attention.cuda_select")
# Triton's interpreter turns a loop bound that was loaded into a number in a way NumPy will not allow for ever.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


def placed(item):
    """A copy of all tensors, on the device."""

    def move(value):
        if isinstance(value, Tensor):
            return value.to(DEVICE, copy=True)
        if isinstance(value, tuple):
            return tuple(move(each) for each in value)
        return placed(value) if isinstance(value, (Interval, IndexStream)) else value

    return replace(item, **{field.name: move(getattr(item, field.name)) for field in fields(item)})


def same(made: Tensor, expected: Tensor) -> bool:
    return torch.equal(made.cpu().nan_to_num(9), expected.cpu().nan_to_num(9))


@every_dtype
@pytest.mark.parametrize("width", [1, 2, 8])
def test_lanes_side_by_side_equal_the_cpu_and_see_no_poison(width: int, dtype: torch.dtype, tolerance: float) -> None:
    made = batch(dtype)
    counts = made.interval.counts.clamp(max=width)
    made = replace(made, interval=replace(made.interval, counts=counts))
    made.raw, made.index_query, made.query = (x[:, :width] for x in (made.raw, made.index_query, made.query))
    turns = made.turns if width > 4 else tuple(turn.view(4, 2, 1, 4)[:, 0] for turn in made.turns)
    device = placed(made)
    angles = tuple(turn.to(DEVICE) for turn in turns)
    intact = cpu.absorb_keys(made.raw, made.stream, made.interval, *turns)
    assert torch.equal(cuda.absorb_keys(device.raw, device.stream, device.interval, *angles).cpu(), intact)
    assert torch.equal(device.stream.pages.isnan().cpu(), made.stream.pages.isnan())
    assert error(device.stream.pages.nan_to_num(0), made.stream.pages.nan_to_num(0)) < tolerance
    assert torch.equal(device.stream.tags.cpu(), made.stream.tags)
    assert same(device.stream.ring, made.stream.ring)
    selection = cpu.select_positions(made.index_query, made.stream.pages, made.interval, 16)
    chosen = cuda.select_positions(device.index_query, made.stream.pages.to(DEVICE), device.interval, 16)
    assert torch.equal(chosen.cpu(), selection)
    expected = cpu.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    attended = cuda.sparse_attend(device.query, device.k_pages, device.v_pages, chosen, device.interval, 0.25)
    assert error(attended, expected) < tolerance
    assert attended[3].eq(0).all() and attended[1, 3:].eq(0).all()


def test_a_ring_entry_of_another_position_is_reported_when_a_group_needs_it() -> None:
    made = placed(batch(torch.float32))
    made.stream.tags[1, 69 % 12] = 69 - 12  # lane 1 begins at 70 and closes group 17 with positions 68 and 69
    intact = cuda.absorb_keys(made.raw, made.stream, made.interval, *made.turns)
    assert intact.tolist() == [True, False, True, True]


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize("length", [0, 1, 2, 3, 12])
def test_every_count_closes_the_same_groups_and_leaves_the_same_ring(length: int, count: int) -> None:
    width, ring = 9, draw(2, 12, 8)
    tags = torch.zeros(2, 12, dtype=torch.int64, device=DEVICE)
    for position in range(max(0, length - 12), length):
        tags[0, position % 12] = position
    lanes = [torch.tensor([value], device=DEVICE) for value in (0, length, count)]
    interval = Interval(*lanes, torch.tensor([[1]], device=DEVICE))
    stream = IndexStream(ring, tags, torch.zeros(2, 64, 2, device=DEVICE), draw(8, seed=1), 1e-6)
    on_cpu = replace(
        stream, **{name: getattr(stream, name).cpu().clone() for name in ("ring", "tags", "pages", "norm")}
    )
    raw, angles = draw(1, width, 8, seed=2), (draw(3, 1, 4, seed=3), draw(3, 1, 4, seed=4))
    raw[:, count:] = torch.nan
    beside = Interval(*(getattr(interval, field.name).cpu() for field in fields(interval)))
    made = cuda.absorb_keys(raw, stream, interval, *angles)
    expected = cpu.absorb_keys(raw.cpu(), on_cpu, beside, *(angle.cpu() for angle in angles))
    assert made.tolist() == expected.tolist()
    torch.testing.assert_close(stream.pages.cpu(), on_cpu.pages, rtol=1e-5, atol=1e-6)
    assert torch.equal(stream.ring.cpu(), on_cpu.ring)
    assert torch.equal(stream.tags.cpu(), on_cpu.tags)


@every_dtype
def test_norm_and_rotary_take_strided_heads(dtype: torch.dtype, tolerance: float) -> None:
    fused, weight = draw(5, 6, 2, 20, dtype=dtype), draw(20, dtype=dtype, seed=1)
    angles = draw(5, 2, 8, dtype=dtype, seed=2).split(1, dim=1)
    made = cuda.norm_rotary(fused[:, :, 0], weight, *angles, 1e-6)
    expected = cpu.norm_rotary(fused[:, :, 0].cpu(), weight.cpu(), *(angle.cpu() for angle in angles), 1e-6)
    assert error(made, expected) < tolerance
    gated = cuda.sigmoid_gate(made, fused[:, :, 1])
    assert error(gated, cpu.sigmoid_gate(expected, fused[:, :, 1].cpu())) < tolerance
    flat = cuda.sigmoid_gate(made.flatten(1), fused[:, :, 1].flatten(1))
    assert torch.equal(flat, gated.flatten(1))


def integers(*shape: int, low: int, high: int, seed: int) -> Tensor:
    """Small whole numbers: every order of a sum gives the same bits, so ties are ties everywhere."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize(("budget", "low"), [(16, -2), (2048, -2), (400, -1), (64, 0)])
def test_long_contexts_with_many_ties_select_what_the_cpu_selects(budget: int, low: int) -> None:
    tokens, width = 9000, 3
    table = torch.randperm(160, generator=torch.Generator().manual_seed(5))[None, :150].repeat(3, 1)
    pages = integers(161, 64, 2, low=low, high=3, seed=1)
    q = integers(3, width, 4, 8, low=-2, high=3, seed=2)
    interval = Interval(torch.arange(3), torch.tensor([tokens, 8191, 2046]), torch.tensor([3, 2, 3]), table.int())
    expected = cpu.select_positions(q, pages, interval, budget)
    made = cuda.select_positions(q.to(DEVICE), pages.to(DEVICE), placed(interval), budget)
    assert torch.equal(made.cpu(), expected)


def test_rows_that_come_in_slabs_select_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = placed(batch(torch.float32))
    made.stream.pages.nan_to_num_(0)
    whole = cuda.select_positions(made.index_query, made.stream.pages, made.interval, 16)
    monkeypatch.setattr(cuda_select, "_SLAB_ROWS", 3)
    assert torch.equal(cuda.select_positions(made.index_query, made.stream.pages, made.interval, 16), whole)


def test_selections_of_any_length_and_with_gaps_attend_the_same_cut_or_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made = batch(torch.float32)
    device = placed(made)
    for entries in (3, 150):
        selection = torch.full((4, 8, entries), -1, dtype=torch.int32)
        for lane, count in enumerate(made.interval.counts.tolist()):
            for row in range(count):
                seen = int(made.interval.lengths[lane]) + row + 1
                places = torch.randperm(entries, generator=torch.Generator().manual_seed(row))[: seen // 2]
                selection[lane, row, places] = torch.arange(seen)[: len(places)].int()
        selection[0, 1] = -1
        expected = cpu.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
        results = []
        for uncut_from in (64, 0):
            monkeypatch.setattr(cuda_attend, "_UNCUT_FROM_ROWS", uncut_from)
            results.append(
                cuda.sparse_attend(
                    device.query, device.k_pages, device.v_pages, selection.to(DEVICE), device.interval, 0.25
                )
            )
        for attended in results:
            assert error(attended, expected) < 1e-6
            assert attended[3].eq(0).all() and attended[0, 1].eq(0).all()


@pytest.mark.parametrize("uncut_from", [64, 0])
def test_what_inactive_rows_select_is_not_looked_up(uncut_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_attend, "_UNCUT_FROM_ROWS", uncut_from)
    made = placed(batch(torch.float32))
    selection = torch.full((4, 8, 150), -1, dtype=torch.int32, device=DEVICE)
    selection[:, :, 149] = 2
    expected = cuda.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    for lane, count in enumerate(made.interval.counts.tolist()):
        selection[lane, count:] = 1 << 30
    attended = cuda.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    assert torch.equal(attended, expected) and attended[1, 3:].eq(0).all() and attended[0].ne(0).any()


def test_pages_may_keep_heads_outermost_and_rows_stand_alone() -> None:
    made = placed(batch(torch.float32))
    made.stream.pages.nan_to_num_(0)
    selection = cuda.select_positions(made.index_query, made.stream.pages, made.interval, 16)
    whole = cuda.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    turned = [pages.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for pages in (made.k_pages, made.v_pages)]
    assert torch.equal(cuda.sparse_attend(made.query, *turned, selection, made.interval, 0.25), whole)
    alone = Interval(
        made.interval.slots[:1],
        made.interval.lengths[:1] + 5,
        torch.tensor([1], device=DEVICE),
        made.interval.page_tables[:1],
    )
    chosen = cuda.select_positions(made.index_query[:1, 5:6], made.stream.pages, alone, 16)
    assert torch.equal(chosen[0, 0], selection[0, 5])
    one = cuda.sparse_attend(made.query[:1, 5:6], made.k_pages, made.v_pages, chosen, alone, 0.25)
    assert torch.equal(one[0, 0], whole[0, 5])


@pytest.mark.parametrize("case", [0, 1])
def test_a_recorded_selection_is_reused_with_the_drafted_tail(case: int) -> None:
    data, params = golden(f"qwen38/qsa_draft_reuse_{case}")
    names = ("anchor_selection", "anchor_positions", "source_rows", "query_positions")
    selection = cuda.reuse_selection(*(data[name].to(DEVICE) for name in names), params["tail"])
    assert torch.equal(selection.cpu(), data["selected"])


@pytest.mark.gpu
@pytest.mark.parametrize(("lanes", "width", "tokens"), [(1, 1, 40), (1, 8, 20_000), (4, 6, 3_000), (1, 96, 4_000)])
def test_real_geometry_equals_float64(lanes: int, width: int, tokens: int) -> None:
    pages = -(-(tokens + width) // 64)
    table = torch.randperm(lanes * pages, generator=torch.Generator().manual_seed(0)).view(lanes, pages)
    starts = torch.full((lanes,), tokens)
    interval = Interval(torch.arange(lanes), starts, torch.full((lanes,), width), table.int())
    device, dtype = placed(interval), torch.bfloat16
    index_pages = integers(lanes * pages + 1, 64, 32, low=-3, high=4, seed=1)
    index_query = integers(lanes, width, 4, 128, low=-3, high=4, seed=2)
    expected = cpu.select_positions(index_query, index_pages, interval, 2048)
    chosen = cuda.select_positions(index_query.to(DEVICE, dtype), index_pages.to(DEVICE, dtype), device, 2048)
    assert torch.equal(chosen.cpu(), expected)
    k, v = (draw(lanes * pages + 1, 64, 2, 256, dtype=dtype, seed=seed) for seed in (3, 4))
    q = draw(lanes, width, 24, 256, dtype=dtype, seed=5)
    attended = cuda.sparse_attend(q, k, v, chosen, device, 1 / 16)
    wide = cpu.sparse_attend(*(x.cpu().double() for x in (q, k, v)), expected, interval, 1 / 16)
    # One rounding to bfloat16, at most 2^−9; weights keep sixteen bits.
    assert error(attended, wide) < 2**-8
