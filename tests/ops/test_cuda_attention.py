"""CUDA attention and page writes: against the definition, blind to poison, equal at every width, batch and cut."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from flare.ops.attention import reference
from flare.ops.attention.cuda import _MOST_SPLITS, paged_attention, split_tokens, tickets_of, write_pages
from tests.ops.triton_device import DEVICE, TOLERANCES, draw, error

# Triton's interpreter makes numbers of arrays that hold one.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
GEOMETRIES = [(9, 3, 64), (4, 4, 32), (4, 2, 6)]
every_dtype = pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)


@dataclass
class Round:
    """Lanes with random pasts in scattered pages; everything past a lane's rows is NaN."""

    q: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    lengths: Tensor
    counts: Tensor

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def attend(self) -> Tensor:
        return paged_attention(self.q, self.keys, self.values, self.tables, self.lengths, self.counts, self.scale)

    def defined(self) -> Tensor:
        """The definition in float64, on the CPU."""
        operands = (self.q.double(), self.keys.double(), self.values.double())
        whole = (*operands, self.tables, self.lengths, self.counts)
        return reference.paged_attention(*(operand.cpu() for operand in whole), scale=self.scale)

    def only(self, lanes: list[int], width: int) -> "Round":
        """The first `width` rows of some lanes."""
        counts = self.counts[lanes].clamp(max=width)
        return Round(self.q[lanes, :width], self.keys, self.values, self.tables[lanes], self.lengths[lanes], counts)


def round_of(
    lengths: list[int],
    counts: list[int],
    width: int,
    pages: int,
    geometry: tuple[int, int, int] = GEOMETRIES[0],
    dtype: torch.dtype = torch.float32,
) -> Round:
    query_heads, key_heads, dim = geometry
    lanes = len(lengths)
    pools = torch.full((2, key_heads, lanes * pages + 1, 64, dim), torch.nan, dtype=dtype, device=DEVICE).movedim(1, 3)
    order = torch.randperm(lanes * pages, generator=torch.Generator().manual_seed(3)).view(lanes, pages)
    q = torch.full((lanes, width, query_heads, dim), torch.nan, dtype=dtype, device=DEVICE)
    for lane, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        token = torch.arange(length + count)
        entries = draw(2, len(token), key_heads, dim, dtype=dtype, seed=lane)
        if len(token):
            pools[:, order[lane, token // 64].to(DEVICE), (token % 64).to(DEVICE)] = entries
        q[lane, :count] = draw(count, query_heads, dim, dtype=dtype, seed=100 + lane)
    tables = order.int().to(DEVICE)
    return Round(q, pools[0], pools[1], tables, *(torch.tensor(x, device=DEVICE) for x in (lengths, counts)))


def check(case: Round, tolerance: float) -> None:
    y = case.attend()
    assert y.is_contiguous()
    assert error(y, case.defined()) < tolerance
    for lane, count in enumerate(case.counts.tolist()):
        assert not y[lane, count:].any(), "inactive rows are 0"
    assert not tickets_of(y.device).any(), "a launch leaves its tickets at zero"


@every_dtype
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 65, 127, 128, 129, 200])
def test_page_and_split_crossings(
    geometry: tuple[int, int, int], length: int, dtype: torch.dtype, tolerance: float
) -> None:
    for width in (1, 3):
        check(round_of([length], [width], width, 4, geometry, dtype), tolerance)


@every_dtype
@pytest.mark.parametrize("width", range(1, 10))
def test_every_width_with_lanes_of_every_kind(width: int, dtype: torch.dtype, tolerance: float) -> None:
    case = round_of([0, 63, 300, 5], [1, width, max(width - 1, 1), 0], width, 6, dtype=dtype)
    case.tables[3] = 10**6  # a dead lane's table is not read
    check(case, tolerance)


@every_dtype
def test_a_dead_batch_is_all_zeros(dtype: torch.dtype, tolerance: float) -> None:
    case = round_of([0, 7], [0, 0], 2, 2, dtype=dtype)
    assert torch.equal(case.attend(), torch.zeros_like(case.q))


@every_dtype
def test_a_context_of_many_splits(dtype: torch.dtype, tolerance: float) -> None:
    pages = _MOST_SPLITS * split_tokens(1, 64) // 64 + 1
    assert split_tokens(pages, 64) == 2 * split_tokens(1, 64)
    check(round_of([6000, 700], [2, 1], 2, pages, (3, 1, 16), dtype), tolerance)


@every_dtype
@pytest.mark.parametrize(("lengths", "counts"), [([0], [90]), ([70], [90]), ([64, 3], [65, 0]), ([10, 0], [70, 90])])
def test_prompt_chunks(lengths: list[int], counts: list[int], dtype: torch.dtype, tolerance: float) -> None:
    check(round_of(lengths, counts, 90, 4, dtype=dtype), tolerance)


@every_dtype
def test_a_row_has_the_same_bits_at_any_width_and_batch(dtype: torch.dtype, tolerance: float) -> None:
    case = round_of([250, 60, 128], [8, 8, 8], 8, 6, dtype=dtype)
    together = case.attend()
    for lanes, width in (([0], 1), ([1, 0], 2), ([2], 5), ([2, 1, 0], 7), ([0, 2], 8)):
        assert torch.equal(case.only(lanes, width).attend(), together[lanes, :width]), (lanes, width)


@every_dtype
def test_a_later_row_alone_has_the_bits_it_has_in_a_round(dtype: torch.dtype, tolerance: float) -> None:
    case = round_of([125], [8], 8, 4, dtype=dtype)
    together = case.attend()
    for row in range(8):
        query, one = case.q[:, row : row + 1], case.counts // 8
        alone = Round(query, case.keys, case.values, case.tables, case.lengths + row, one)
        assert torch.equal(alone.attend()[:, 0], together[:, row]), row


def test_pages_of_any_layout_and_queries_of_any_strides() -> None:
    case = round_of([70], [3], 3, 2)
    tokens_first = Round(
        case.q, case.keys.contiguous(), case.values.contiguous(), case.tables.long(), case.lengths, case.counts
    )
    assert torch.equal(tokens_first.attend(), case.attend())
    case.q = torch.cat((case.q, case.q), -1)[..., :64]
    assert not case.q.is_contiguous()
    assert torch.equal(tokens_first.attend(), case.attend())


@every_dtype
def test_write_pages_puts_rows_where_the_index_says(dtype: torch.dtype, tolerance: float) -> None:
    fused = draw(5, 9, 20, dtype=dtype)
    k, v = fused[:, :3], fused[:, 5:8]
    index = torch.tensor([64, 3, 130, 4 * 64, 131], device=DEVICE)
    pools, expected = (torch.full((2, 3, 5, 64, 20), 7.0, dtype=dtype, device=DEVICE).movedim(1, 3) for _ in range(2))
    write_pages(k, v, pools[0], pools[1], index)
    reference.write_pages(k, v, expected[0], expected[1], index)
    assert torch.equal(pools, expected)


@pytest.mark.gpu
@every_dtype
def test_rounds_and_chunks_of_real_sizes(dtype: torch.dtype, tolerance: float) -> None:
    for lengths, counts, width, pages in (
        ([512], [1], 1, 32),
        ([2040], [8], 8, 32),
        ([2000, 64, 0, 1024], [6, 6, 1, 3], 6, 32),
        ([0], [512], 512, 32),
        ([700], [512], 512, 32),
        ([8000], [8], 8, 128),
    ):
        case = round_of(lengths, counts, width, pages, dtype=dtype)
        check_by_lane(case, tolerance)


def check_by_lane(case: Round, tolerance: float) -> None:
    """Against one dense float64 softmax per lane: the definition row by row would take minutes."""
    y = case.attend()
    for lane, (length, count) in enumerate(zip(case.lengths.tolist(), case.counts.tolist(), strict=True)):
        seen = length + count
        pages = case.tables[lane, : -(-seen // 64)].long()
        keys, values = (pool[pages].flatten(0, 1)[:seen].double() for pool in (case.keys, case.values))
        keys, values = (x.repeat_interleave(case.q.shape[2] // x.shape[1], 1) for x in (keys, values))
        scores = torch.einsum("rhd,thd->hrt", case.q[lane, :count].double(), keys) * case.scale
        last = torch.arange(length, seen, device=y.device)[:, None]
        shares = scores.masked_fill(torch.arange(seen, device=y.device) > last, -torch.inf).softmax(-1)
        assert error(y[lane, :count], torch.einsum("hrt,thd->rhd", shares, values)) < tolerance, lane
    assert not tickets_of(y.device).any()


@pytest.mark.gpu
def test_a_thousand_launches_join_alike() -> None:
    case = round_of([2000, 64, 900, 1024], [6, 6, 1, 3], 6, 32, dtype=torch.bfloat16)
    first = case.attend()
    for _ in range(1000):
        assert torch.equal(case.attend(), first)
