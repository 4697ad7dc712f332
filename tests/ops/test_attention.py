"""`paged_attention` and `write_pages`: against the definition, blind to poison, equal at every cut and width."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from flare.ops.attention import reference
from flare.ops.attention.cpu import paged_attention, write_pages

PAGES = 24
GEOMETRIES = [(9, 3, 64), (4, 4, 32), (4, 1, 16)]
# One rounding of a bfloat16 result is 2^−9; float32 and float64 lose a few units in sums over the context.
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 4e-3)]


@dataclass
class Past:
    """One request's rows by position: queries [T, Hq, D], keys and values [T, Hk, D]."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5


def past(geometry: tuple[int, int, int], tokens: int, dtype: torch.dtype, seed: int = 0) -> Past:
    query_heads, key_heads, dim = geometry
    draws = torch.Generator().manual_seed(seed)
    heads = torch.randn(tokens, query_heads + 2 * key_heads, dim, generator=draws).to(dtype)
    return Past(*heads.split((query_heads, key_heads, key_heads), dim=1))


def poisoned_pools(past: Past) -> tuple[Tensor, Tensor]:
    """Heads outermost in memory, as the arena lays them out."""
    heads, dim = past.k.shape[1:]
    pools = torch.full((2, heads, PAGES + 1, 64, dim), torch.nan, dtype=past.k.dtype).movedim(1, 3)
    return pools[0], pools[1]


def flat_index(table: list[int], positions: Tensor) -> Tensor:
    return torch.tensor(table)[positions // 64] * 64 + positions % 64


def attend(past: Past, table: list[int], first: int, count: int, width: int, pools: tuple[Tensor, Tensor]) -> Tensor:
    """Write `count` rows from position `first` on and attend from them, in a round of `width` rows: [count, Hq, D]."""
    stop = first + count
    write_pages(past.k[first:stop], past.v[first:stop], *pools, flat_index(table, torch.arange(first, stop)))
    q = torch.full((1, width, *past.q.shape[1:]), torch.nan, dtype=past.q.dtype)
    q[0, :count] = past.q[first:stop]
    y = paged_attention(
        q, *pools, torch.tensor([table], dtype=torch.int32), torch.tensor([first]), torch.tensor([count]), past.scale
    )
    assert torch.equal(y[0, count:], torch.zeros_like(y[0, count:]))
    return y[0, :count]


def in_chunks(past: Past, chunks: list[int], table: list[int]) -> Tensor:
    pools = poisoned_pools(past)
    rows, first = [], 0
    for count in chunks:
        rows.append(attend(past, table, first, count, count, pools))
        first += count
    return torch.cat(rows)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_lanes_equal_the_definition_and_see_no_poison(
    geometry: tuple[int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    lengths, counts = torch.tensor([0, 63, 90, 128, 5]), torch.tensor([1, 8, 3, 8, 0])
    tables = torch.tensor([[3, 4, 5], [9, 7, 8], [10, 11, 2], [14, 20, 17], [999, 999, 999]], dtype=torch.int32)
    requests = [past(geometry, 140, dtype, seed) for seed in range(5)]
    k_pages, v_pages = poisoned_pools(requests[0])
    for lane, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        if count:
            seen, index = length + count, flat_index(tables[lane].tolist(), torch.arange(length + count))
            write_pages(requests[lane].k[:seen], requests[lane].v[:seen], k_pages, v_pages, index)
    q = torch.full((5, 8, *requests[0].q.shape[1:]), torch.nan, dtype=dtype)
    for lane, request in enumerate(requests):
        first, count = int(lengths[lane]), int(counts[lane])
        q[lane, :count] = request.q[first : first + count]
    scale = requests[0].scale
    expected = reference.paged_attention(q.double(), k_pages.double(), v_pages.double(), tables, lengths, counts, scale)
    y = paged_attention(q, k_pages, v_pages, tables, lengths, counts, scale)
    assert y.dtype == dtype and y.is_contiguous()
    assert float((y.double() - expected).norm() / expected.norm()) < tolerance
    for lane, count in enumerate(counts.tolist()):
        assert not y[lane, count:].any()


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("table", [[2, 3, 4, 5], [9, 2, 21, 0]], ids=["run", "scattered"])
def test_every_cut_gives_the_same_rows(geometry: tuple[int, int, int], table: list[int]) -> None:
    tokens = 200
    cuts = [[1] * 70 + [130], [64, 64, 64, 8], [7, 100, 1, 92], [199, 1]]
    for dtype in (torch.float64, torch.float32):
        request = past(geometry, tokens, dtype)
        whole = in_chunks(request, [tokens], table)
        for chunks in cuts:
            rows = in_chunks(request, chunks, table)
            if dtype == torch.float32:
                assert torch.equal(rows, whole), chunks
            else:
                assert (rows - whole).abs().max() < 1e-10, chunks


@pytest.mark.parametrize("geometry", [*GEOMETRIES, (32, 8, 128)])
def test_float32_rows_have_the_same_bits_at_any_width(geometry: tuple[int, int, int]) -> None:
    request, table = past(geometry, 648, torch.float32), list(range(3, 14))
    k_pages, v_pages = poisoned_pools(request)
    write_pages(request.k, request.v, k_pages, v_pages, flat_index(table, torch.arange(648)))

    def row(position: int, width: int, place: int) -> Tensor:
        pools = (k_pages.clone(), v_pages.clone())
        return attend(request, table, position - place, width, width, pools)[place]

    for position in (0, 1, 63, 64, 191, 255, 256, 511, 512, 640):
        alone = row(position, 1, 0)
        for width in (2, 3, 4, 8):
            assert torch.equal(row(position, width, 0), alone), (position, width)
            if position >= width:
                assert torch.equal(row(position, width, width - 1), alone), (position, width)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_lane_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    one, two = past(GEOMETRIES[0], 100, dtype, 1), past(GEOMETRIES[0], 100, dtype, 2)
    k_pages, v_pages = poisoned_pools(one)
    tables = torch.tensor([[4, 5], [8, 6]])
    for request, table in ((one, tables[0]), (two, tables[1])):
        write_pages(request.k, request.v, k_pages, v_pages, flat_index(table.tolist(), torch.arange(100)))
    q = torch.stack((one.q[90:94], two.q[70:74]))
    lengths, counts = torch.tensor([90, 70]), torch.tensor([4, 4])
    both = paged_attention(q, k_pages, v_pages, tables, lengths, counts, one.scale)
    for lanes in ([0], [1], [1, 0]):
        some = paged_attention(q[lanes], k_pages, v_pages, tables[lanes], lengths[lanes], counts[lanes], one.scale)
        assert torch.equal(some, both[lanes])


def test_attention_reads_query_views_of_a_fused_projection() -> None:
    request = past(GEOMETRIES[0], 8, torch.float32)
    pools = poisoned_pools(request)
    write_pages(request.k, request.v, *pools, flat_index([3], torch.arange(8)))
    arguments = (*pools, torch.tensor([[3]]), torch.tensor([0]), torch.tensor([8]), request.scale)
    assert not request.q.is_contiguous()
    assert torch.equal(
        paged_attention(request.q[None], *arguments), paged_attention(request.q[None].contiguous(), *arguments)
    )


def test_nothing_but_the_rest_of_the_last_page_is_touched() -> None:
    request = past(GEOMETRIES[0], 70, torch.float32)
    k_pages, v_pages = poisoned_pools(request)
    attend(request, [3, 4], 0, 70, 70, (k_pages, v_pages))
    held = torch.zeros(PAGES + 1, 64, dtype=torch.bool)
    held[3] = held[4] = True
    for pool, rows in ((k_pages, request.k), (v_pages, request.v)):
        assert pool[~held].isnan().all()
        assert torch.equal(pool[3:5].flatten(0, 1)[:70], rows)


def test_write_pages_puts_rows_where_the_index_says() -> None:
    request = past(GEOMETRIES[0], 5, torch.bfloat16)
    index = torch.tensor([64, 3, 130, PAGES * 64, 131])
    pools, expected = poisoned_pools(request), poisoned_pools(request)
    write_pages(request.k, request.v, *pools, index)
    reference.write_pages(request.k, request.v, *expected, index)
    for pool, wanted in zip(pools, expected, strict=True):
        assert torch.equal(pool.nan_to_num(7.0), wanted.nan_to_num(7.0))
