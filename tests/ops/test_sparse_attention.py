"""The sparse attention family: against outside data and the definition, ties exact, blind to poison."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from flare.ops.attention.cpu import paged_attention
from flare.ops.sparse_attention import IndexStream, Interval, cpu, reference
from tests.goldens import golden

# What outside code computes in bfloat16 with float32 sums: one rounding of a bfloat16 result may fall the other way.
ONE_ROUNDING = {"rtol": 2**-7, "atol": 2**-10}
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 1.6e-2)]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rotary(data: dict[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary rows from golden half tables."""
    cosine, sine = data["rope_cos"][positions][:, None], data["rope_sin"][positions][:, None]
    return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)


def one_lane(length: int, count: int, table: list[int]) -> Interval:
    return Interval(torch.tensor([0]), torch.tensor([length]), torch.tensor([count]), torch.tensor([table]))


def in_pages(keys: Tensor, table: list[int], page_tokens: int) -> Tensor:
    """Keys of groups [G, I] laid into index pages by the table; everything else is NaN."""
    pages = torch.full((max(table) + 2, page_tokens // 4, keys.shape[1]), torch.nan, dtype=keys.dtype)
    for group, key in enumerate(keys):
        pages[table[group // pages.shape[1]], group % pages.shape[1]] = key
    return pages.view(len(pages), page_tokens, -1)


@pytest.mark.parametrize("case", [0, 1, 2])
def test_the_stream_gives_the_same_keys_and_ring_as_outside_code_through_rejections(case: int) -> None:
    data, params = golden(f"qwen38/qsa_stream_{case}")
    capacity, dim = params["ring_capacity"], params["index_dim"]
    stream = IndexStream(
        ring=torch.zeros(1, capacity, dim, dtype=torch.bfloat16),
        tags=torch.full((1, capacity), -1),
        pages=torch.full((3, 64, dim // 4), torch.nan, dtype=torch.bfloat16),
        norm=data["key_norm"],
        eps=params["eps"],
    )
    taken = 0
    for step, interval in enumerate(params["script"]):
        start, rows = interval["start"], interval["rows"]
        starts = (start + torch.arange(0, rows, 4)) // 4 * 4
        raw = data["raw_keys"][None, taken : taken + rows]
        assert cpu.absorb_keys(raw, stream, one_lane(start, rows, [1]), *rotary(data, starts)).all()
        taken += rows
        groups = data[f"s{step}_group_ids"]
        assert torch.equal(stream.pages[1].view(16, dim)[groups], data[f"s{step}_reps"])
        assert torch.equal(stream.tags[0], data[f"s{step}_tags"])
        written = stream.tags[0] >= 0
        assert torch.equal(stream.ring[0, written], data[f"s{step}_ring"][written])


@pytest.mark.parametrize("case", [0, 1, 2])
def test_selection_and_attention_agree_with_outside_code(case: int) -> None:
    data, params = golden(f"qwen38/qsa_attend_{case}")
    positions, page = data["query_positions"], params["page"]
    interval = one_lane(int(positions[0]), len(positions), data["block_table"][0].tolist())
    query = cpu.norm_rotary(data["index_query"], data["query_norm"], *rotary(data, positions), params["eps"])
    assert torch.equal(query, data["prepared_index_query"])
    for row, position in enumerate(positions.tolist()):
        groups = (position + 1) // 4
        scores = cpu.group_scores(query[row], data["compressed_keys"][:groups])
        torch.testing.assert_close(scores, data["scores"][row, :groups], rtol=2e-6, atol=2e-6)
    index_pages = in_pages(data["compressed_keys"], interval.page_tables[0].tolist(), page)
    selection = cpu.select_positions(query[None], index_pages, interval, params["budget"])
    assert_same_positions(selection[0], data["selected"])
    attended = cpu.sparse_attend(
        data["query"][None], data["key_cache"], data["value_cache"], selection, interval, params["softmax_scale"]
    )
    torch.testing.assert_close(attended[0], data["attn"], **ONE_ROUNDING)
    # the outside code also rounds σ(gate), which is one more rounding
    torch.testing.assert_close(cpu.sigmoid_gate(data["attn"], data["gate"]), data["gated"], rtol=2**-6, atol=2**-10)


@pytest.mark.parametrize("case", [0, 1])
def test_equal_scores_select_the_lower_group(case: int) -> None:
    data, params = golden(f"qwen38/qsa_select_ties_{case}")
    positions = data["query_positions"]
    for row, position in enumerate(positions.tolist()):
        groups = (position + 1) // 4
        scores = cpu.group_scores(data["prepared_index_query"][row], data["compressed_keys"][:groups])
        assert torch.equal(scores, data["scores"][row, :groups])
    pages = in_pages(data["compressed_keys"], [1], 64)
    for select in (cpu.select_positions, reference.select_positions):
        selection = select(
            data["prepared_index_query"][None].float(),
            pages.float(),
            one_lane(int(positions[0]), len(positions), [1]),
            params["budget"],
        )
        assert_same_positions(selection[0], data["selected"])


@pytest.mark.parametrize("case", [0, 1])
@pytest.mark.parametrize("operators", [cpu, reference])
def test_a_recorded_selection_is_reused_with_the_drafted_tail(case: int, operators) -> None:
    data, params = golden(f"qwen38/qsa_draft_reuse_{case}")
    selection = operators.reuse_selection(
        data["anchor_selection"],
        data["anchor_positions"],
        data["source_rows"],
        data["query_positions"],
        params["tail"],
    )
    assert torch.equal(selection, data["selected"])


def assert_same_positions(selection: Tensor, expected: Tensor) -> None:
    """Ascending positions equal the expected ones, which come in the order of their scores."""
    assert selection.shape == expected.shape
    for row, wanted in zip(selection.tolist(), expected.tolist(), strict=True):
        wanted = sorted(position for position in wanted if position >= 0)
        assert row == wanted + [-1] * (len(row) - len(wanted))


@dataclass
class Batch:
    """Four lanes, the last one dead, over pools that are NaN where nothing was written."""

    interval: Interval
    stream: IndexStream
    raw: Tensor
    index_query: Tensor
    query: Tensor
    k_pages: Tensor
    v_pages: Tensor
    turns: tuple[Tensor, Tensor]

    def copied(self) -> "Batch":
        stream = replace(
            self.stream, ring=self.stream.ring.clone(), tags=self.stream.tags.clone(), pages=self.stream.pages.clone()
        )
        return replace(self, stream=stream)


def batch(dtype: torch.dtype, width: int = 8) -> Batch:
    draws = torch.Generator().manual_seed(width)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64).to(dtype)

    lengths, counts = [61, 70, 3, 9], [8, 3, 5, 0]
    tables = torch.tensor([[3, 1], [0, 5], [2, 7], [99, 99]], dtype=torch.int32)
    ring, tags = torch.full((5, 12, 8), torch.nan, dtype=dtype), torch.zeros(5, 12, dtype=torch.int64)
    pages = torch.full((8, 64, 2), torch.nan, dtype=dtype)
    k_pages, v_pages = (torch.full((8, 64, 2, 16), torch.nan, dtype=dtype) for _ in range(2))
    for lane, (length, count) in enumerate(zip(lengths[:3], counts, strict=False)):
        for position in range(length + count):
            page = tables[lane, position // 64]
            k_pages[page, position % 64], v_pages[page, position % 64] = normal(2, 16), normal(2, 16)
        for position in range(max(0, length - 12), length):
            ring[lane, position % 12], tags[lane, position % 12] = normal(8), position
        for group in range(length // 4):
            pages[tables[lane, group // 16]].view(16, 8)[group % 16] = normal(8)
    angles = torch.rand(4 * 2, 1, 2, generator=draws, dtype=torch.float64)
    turns = (angles.cos().repeat(1, 1, 2).to(dtype), torch.cat((-angles.sin(), angles.sin()), -1).to(dtype))
    interval = Interval(torch.tensor([0, 1, 2, 4]), torch.tensor(lengths), torch.tensor(counts), tables)
    norm = 0.1 * normal(8)
    raw, index_query, query = normal(4, width, 8), normal(4, width, 4, 8), normal(4, width, 6, 16)
    for rows in (raw, index_query, query):
        for lane, count in enumerate(counts):
            rows[lane, count:] = torch.nan
    return Batch(interval, IndexStream(ring, tags, pages, norm, 1e-6), raw, index_query, query, k_pages, v_pages, turns)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_operators_equal_the_definition_and_see_no_poison(dtype: torch.dtype, tolerance: float) -> None:
    made = batch(dtype)
    wide = replace(
        batch(dtype),
        stream=replace(
            made.stream,
            ring=made.stream.ring.double(),
            tags=made.stream.tags.clone(),
            pages=made.stream.pages.double(),
            norm=made.stream.norm.double(),
        ),
    )
    assert cpu.absorb_keys(made.raw, made.stream, made.interval, *made.turns).all()
    turns = (made.turns[0].double(), made.turns[1].double())
    assert reference.absorb_keys(made.raw.double(), wide.stream, made.interval, *turns).all()
    torch.testing.assert_close(
        made.stream.pages.double(), wide.stream.pages, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    assert torch.equal(made.stream.tags, wide.stream.tags)
    assert torch.equal(made.stream.ring.double().nan_to_num(9), wide.stream.ring.nan_to_num(9))
    # from here on both see the same keys, so that they may select the same groups
    selection = cpu.select_positions(made.index_query, made.stream.pages, made.interval, 16)
    pages = made.stream.pages.double()
    assert torch.equal(selection, reference.select_positions(made.index_query.double(), pages, made.interval, 16))
    attended = cpu.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    expected = reference.sparse_attend(
        made.query.double(), made.k_pages.double(), made.v_pages.double(), selection, made.interval, 0.25
    )
    torch.testing.assert_close(attended.double(), expected, rtol=tolerance, atol=tolerance)
    assert attended[3].eq(0).all() and attended[1, 3:].eq(0).all()
    gate = torch.randn(attended.shape).to(dtype)
    torch.testing.assert_close(
        cpu.sigmoid_gate(attended, gate).double(),
        reference.sigmoid_gate(attended.double(), gate.double()),
        rtol=tolerance,
        atol=tolerance,
    )


def test_within_the_budget_sparse_attention_is_dense_attention() -> None:
    made = batch(torch.float64)
    cpu.absorb_keys(made.raw, made.stream, made.interval, *made.turns)
    counts, tables = made.interval.counts, made.interval.page_tables.clamp_max(7)
    selection = cpu.select_positions(made.index_query, made.stream.pages, made.interval, 72)
    sparse = cpu.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    pools = [made.k_pages.nan_to_num(0), made.v_pages.nan_to_num(0)]
    dense = paged_attention(made.query.nan_to_num(0), *pools, tables, made.interval.lengths, counts, 0.25)
    torch.testing.assert_close(sparse, dense, rtol=1e-12, atol=1e-12)


def test_a_row_is_the_same_bit_by_bit_alone_and_among_others() -> None:
    made = batch(torch.float32)
    cpu.absorb_keys(made.raw, made.stream, made.interval, *made.turns)
    selection = cpu.select_positions(made.index_query, made.stream.pages, made.interval, 16)
    attended = cpu.sparse_attend(made.query, made.k_pages, made.v_pages, selection, made.interval, 0.25)
    for lane in range(3):
        for row in range(int(made.interval.counts[lane])):
            alone = Interval(
                made.interval.slots[lane : lane + 1],
                made.interval.lengths[lane : lane + 1] + row,
                torch.tensor([1]),
                made.interval.page_tables[lane : lane + 1],
            )
            mine = slice(lane, lane + 1), slice(row, row + 1)
            chosen = cpu.select_positions(made.index_query[mine], made.stream.pages, alone, 16)
            assert torch.equal(chosen, selection[mine])
            one = cpu.sparse_attend(made.query[mine], made.k_pages, made.v_pages, chosen, alone, 0.25)
            assert torch.equal(one, attended[mine])


def test_a_ring_entry_of_another_position_is_reported_when_a_group_needs_it() -> None:
    made = batch(torch.float64)
    made.stream.tags[1, 69 % 12] = 69 - 12  # lane 1 begins at 70 and closes group 17 with positions 68 and 69
    assert cpu.absorb_keys(made.raw, made.copied().stream, made.interval, *made.turns).tolist() == [
        True,
        False,
        True,
        True,
    ]
    assert reference.absorb_keys(made.raw, made.copied().stream, made.interval, *made.turns).tolist() == [
        True,
        False,
        True,
        True,
    ]
