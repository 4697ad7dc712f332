"""The chain's kernels: draws bit for bit, tokens of the CPU and of FlashInfer's law, guards."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from flare.ops.sampling import DraftLaw, chain_cpu, cuda, philox
from flare.ops.sampling.cuda_chain import chain_inputs
from flare.ops.sampling.cuda_philox import uniform
from tests.ops.sampling.device import COMPILED, DEVICE, chain_verify, moved
from tests.sampling.chain_checks import check_chain_equals_kernel

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
UNIT = json.loads((Path(__file__).parents[2] / "golden/philox/known_answers.json").read_text())["unit_draw"]
EDGES = ((0, -1, 2**63 - 1, -(2**63), UNIT["seed"]), (0, 1, -1, 2**62, UNIT["offset"]))


@triton.jit
def _draws(seed_ptr, offset_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, uniform(tl.load(seed_ptr + place), tl.load(offset_ptr + place)))


def test_draws_equal_the_cpu_bit_for_bit():
    rng, count = np.random.default_rng(1), 1 << 14
    seed, offset = (torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, count)) for _ in range(2))
    seed[:5], offset[:5] = (torch.tensor([a, b, c, d, e]) for a, b, c, d, e in EDGES)
    out = torch.empty(count, device=DEVICE)
    _draws[(count // 1024,)](seed.to(DEVICE), offset.to(DEVICE), out, BLOCK=1024)
    assert torch.equal(out.cpu(), philox.uniform(seed, offset))
    assert out[4] == 1.0


def test_tokens_equal_the_kernel_law_draw_for_draw():
    check_chain_equals_kernel(chain_verify, seed=3, lanes=3000 if COMPILED else 25)


def wide_round(rng: np.random.Generator, lanes: int, depth: int, vocab: int):
    """Laws with few survivors, drafts that are often good, point masses and markers among them."""
    p = rng.dirichlet(np.full(vocab, 0.01), (lanes, depth + 1)).astype(np.float32)
    q = (0.6 * p[:, :depth] + 0.4 * rng.dirichlet(np.full(vocab, 0.01), (lanes, depth))).astype(np.float32)
    drafts = np.minimum((q.cumsum(-1) < rng.random((lanes, depth, 1)) * 0.999).sum(-1), vocab - 1)
    real = np.arange(depth) < rng.integers(0, depth + 1, lanes)[:, None]
    point = (rng.random((lanes, depth)) < 0.3) & real
    p, q = (torch.from_numpy(np.pad(x, ((0, 0), (0, 0), (0, 1)))) for x in (p, q))
    seed, offset = (torch.from_numpy(rng.integers(0, 2**62, lanes)) for _ in range(2))
    return p, q, torch.from_numpy(point), torch.from_numpy(np.where(real, drafts, vocab)), seed, offset


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(("depth", "vocab"), [(0, 9001), (3, 9001), (5, 4096)])
def test_rows_of_several_tiles_equal_the_cpu(learned: bool, depth: int, vocab: int):
    p, q, point, drafts, seed, offset = wide_round(np.random.default_rng(depth), 400 if COMPILED else 30, depth, vocab)
    if not learned:
        point = drafts < vocab
    law = DraftLaw(q if learned else None, point)
    got, want = (verify(p, law, drafts, seed, offset) for verify in (chain_verify, chain_cpu.chain_verify))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_a_lane_does_not_depend_on_its_place_or_on_the_strides_of_its_laws():
    p, q, point, drafts, seed, offset = wide_round(np.random.default_rng(8), 6, 3, 5000)
    tokens, accepted = chain_verify(p, DraftLaw(q, point), drafts, seed, offset)
    stepwise = q.transpose(0, 1).contiguous().transpose(0, 1)
    drafts = torch.cat((drafts, drafts), 1)[:, :3]  # as a round hands them over: rows of a wider tensor
    for b in range(6):
        one = slice(b, b + 1)
        alone = chain_verify(p[one], DraftLaw(stepwise[one], point[one]), drafts[one], seed[one], offset[one])
        assert torch.equal(alone[0][0], tokens[b])
        assert alone[1][0] == accepted[b]


def test_rows_at_points_and_markers_are_never_read():
    p = torch.full((40, 4, 5), 0.25)
    p[..., 4] = 0
    drafts, point = torch.tensor([[1, 2, 4]]).repeat(40, 1), torch.tensor([[True, True, False]]).repeat(40, 1)
    seed, offset = torch.arange(40), torch.zeros(40, dtype=torch.int64)
    poison = DraftLaw(torch.full((40, 3, 5), torch.nan), point)
    got, want = (chain_verify(p, law, drafts, seed, offset) for law in (poison, DraftLaw(None, point)))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_a_unit_draw_at_a_certain_token_still_emits_it():
    p = torch.zeros(2, 2, 5)
    p[:, :, 3] = 1
    stream = torch.full((2,), UNIT["seed"]), torch.full((2,), UNIT["offset"])
    for law in (DraftLaw(None, torch.ones(2, 1, dtype=torch.bool)), DraftLaw(p[:, :1], torch.zeros(2, 1).bool())):
        tokens, accepted = chain_verify(p, law, torch.full((2, 1), 3), *stream)
        assert tokens.tolist() == [[3, -1]] * 2
        assert accepted.tolist() == [0, 0]


@pytest.mark.parametrize("broken", [0.0, torch.nan])
def test_a_row_without_mass_never_emits_the_marker_or_nothing(broken: float):
    p, stream = torch.full((1, 2, 5), broken), (torch.tensor([1]), torch.tensor([0]))
    copy = chain_verify(p, DraftLaw(None, torch.tensor([[True]])), torch.tensor([[2]]), *stream)
    assert copy[0].tolist() == [[2, -1]]
    marker = chain_verify(p, DraftLaw(None, torch.tensor([[False]])), torch.tensor([[4]]), *stream)
    assert marker[0].tolist() == [[0, -1]]
    bonus = chain_verify(p[:, :1], DraftLaw(None, torch.zeros(1, 0).bool()), torch.zeros(1, 0).long(), *stream)
    assert bonus[0].tolist() == [[0]]


def test_a_learned_draft_without_its_law_is_replaced_by_a_token_of_the_target():
    p = torch.tensor([[[0.0, 0.5, 0.5, 0.0]] * 2]).repeat(30, 1, 1)
    law, drafts = DraftLaw(None, torch.zeros(30, 1).bool()), torch.ones(30, 1, dtype=torch.int64)
    tokens, accepted = chain_verify(p, law, drafts, torch.arange(30), torch.zeros(30).long())
    assert not accepted.any()
    assert set(tokens[:, 0].tolist()) == {1, 2}


def test_operands_of_one_row_calls_are_dense_and_their_empty_tokens_are_replaced():
    p, q, point, drafts, seed, offset = wide_round(np.random.default_rng(2), 3, 2, 4999)
    here = [x.to(DEVICE) for x in (p, drafts, seed, offset)]
    inputs = chain_inputs(here[0], moved(DraftLaw(q, point)), *here[1:])
    dense_p, dense_q = (
        torch.full((3, 3, 5000), torch.nan, device=DEVICE),
        torch.full((3, 2, 5000), torch.nan, device=DEVICE),
    )
    cuda._dense_operands[(2, 3, 3)](inputs, dense_p, dense_q, 5000, DEPTH=2, LEARNED=True, TILE=4096)
    want = torch.where(point[..., None], torch.nn.functional.one_hot(drafts, 5000).float(), q)
    want[drafts == 4999] = 0
    assert torch.equal(dense_p.cpu(), p)
    assert torch.equal(dense_q.cpu(), want)
    tokens, drawn = torch.empty(3, 3, dtype=torch.int64, device=DEVICE), torch.full((3, 3), -1, dtype=torch.int32)
    drawn[1, 1] = 7
    taken = torch.tensor([2, 1, 0], dtype=torch.int32)
    cuda._guard[(3,)](inputs, drawn.to(DEVICE), taken.to(DEVICE), tokens, DEPTH=2, TILE=4096)
    certain = int(drafts[2, 0]) if drafts[2, 0] < 4999 else int(p[2, 0].argmax())
    assert tokens.tolist() == [[-1, -1, int(p[0, 2].argmax())], [-1, 7, -1], [certain, -1, -1]]
