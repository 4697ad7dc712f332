"""CUDA bookkeeping of rounds: every operator leaves the CPU's bits, over random tables, frames and rounds."""

from tests.ops.triton_device import DEVICE  # isort: skip  Triton decides at import where it runs

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from flare.contract.frames import COPY_TOKENS, RECORD_FIELDS, Arguments, argument_arrays
from flare.contract.manifest import Extent
from flare.ops.requests import Emission, Lanes, Move, Outcome, PageTables, RequestOperators
from flare.ops.requests.cpu import REQUESTS as CPU
from flare.ops.requests.cuda import REQUESTS as CUDA
from flare.rounds.requests import RECENT_TOKENS, RequestTable, declare_requests
from flare.sampling.domains import Domain, offset, proposal_event
from flare.state.arena import Arena

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

VOCAB, FEEDBACK, OUTPUT = 11, 1500, 24
EXTENT = Extent(
    lanes=6, slots=7, pages=9, pages_per_request=4, width=8, chunk=64, context=256, vocab=VOCAB, snapshots=2
)
SEEDS = range(8)


class Case:
    """A random table and frame, for one operator set on its device; the same numbers for both sets."""

    def __init__(self, seed: int, operators: RequestOperators, device: str) -> None:
        self.draws, self.operators, self.device = torch.Generator().manual_seed(seed), operators, device
        arena = Arena([declare_requests(EXTENT, FEEDBACK, OUTPUT, "float32")], EXTENT, torch.device("cpu"))
        for tensor in arena.tensors.values():
            tensor.copy_(self.drawn(0, 4, *tensor.shape).to(tensor.dtype))
        self.state = {name: tensor.to(device) for name, tensor in arena.tensors.items()}
        self.table = RequestTable(self.state, EXTENT, operators)
        self.fill("consumed", 0, EXTENT.context - 8)
        self.fill("terminal", 0, 5)
        self.table.terminal.clamp_min_(3).sub_(3)  # most are live
        self.fill("generation", 0, 2)
        self.fill("max_tokens", 4, 12)
        self.fill("generated", 1, 4)
        self.fill("logprobs", -1, 3)
        self.fill("recent", 0, 3)
        self.fill("pending", 0, VOCAB)
        self.fill("stops", -150, VOCAB)  # below zero is none
        self.arguments = self.frame()

    def drawn(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers low … high − 1."""
        return torch.randint(low, high, shape, generator=self.draws)

    def fill(self, column: str, low: int, high: int) -> None:
        tensor = self.state[f"requests.{column}"]
        tensor.copy_(self.drawn(low, high, *tensor.shape))
        tensor[EXTENT.null_slot] = 0

    def frame(self) -> Arguments[Tensor]:
        """Distinct slots and the null slot, now and then another generation; copies that fit about every other time."""
        arrays = {
            name: torch.zeros(shape, dtype=getattr(torch, kind))
            for name, (shape, kind) in argument_arrays(EXTENT).items()
        }
        lanes = EXTENT.lanes
        slots = torch.randperm(EXTENT.slots + 1, generator=self.draws)[:lanes]
        arrays["lanes"][:] = slots
        generations = self.table.generation.cpu()[slots]
        arrays["generations"][:] = generations + (self.drawn(0, 6, lanes) == 0)
        arrays["ceilings"][:] = self.drawn(0, 9, lanes)
        consumed, recent = self.table.consumed.cpu()[slots], self.table.recent.cpu()[slots]
        start = (consumed + 1 - self.drawn(-1, 6, lanes)).clamp_min(0)
        arrays["copy_position"][:] = start
        arrays["copy_before"][:] = recent.gather(1, (start[:, None] - 1) % RECENT_TOKENS)[:, 0]
        places = (start[:, None] + torch.arange(COPY_TOKENS)) % RECENT_TOKENS
        arrays["copy_tokens"][:] = recent.gather(1, places) + (self.drawn(0, 12, lanes, COPY_TOKENS) == 0)
        arrays["copy_length"][:] = self.drawn(0, COPY_TOKENS + 1, lanes)
        arrays["copy_source"][:] = self.drawn(1, 4, lanes)
        arrays["boundary_slots"][:] = torch.where(
            self.drawn(0, 3, lanes) > 0, EXTENT.snapshot_row(0) + self.drawn(0, 2, lanes), -1
        )
        arrays["page_tables"][:] = self.drawn(0, EXTENT.pages, lanes, EXTENT.pages_per_request)
        return Arguments(**{name: array.to(self.device) for name, array in arrays.items()})

    @property
    def pages(self) -> PageTables:
        return PageTables(self.arguments.page_tables, EXTENT.null_page, EXTENT.context, self.operators.causal_rows)

    def lanes(self) -> Lanes:
        return self.table.lanes(self.arguments, EXTENT.lanes)

    def emission(self, lanes: Lanes, width: int) -> Emission:
        accepted = self.drawn(0, width, EXTENT.lanes)
        tokens = self.drawn(0, VOCAB, EXTENT.lanes, width).where(torch.arange(width) <= accepted[:, None], -1)
        return self.table.clip(tokens.to(self.device), accepted.to(self.device), lanes)

    def kept_state(self) -> dict[str, Tensor]:
        """The table less the null slot."""
        return {
            name: torch.cat((tensor[: EXTENT.null_slot], tensor[EXTENT.null_slot + 1 :]))
            for name, tensor in self.state.items()
        }


def both(seed: int) -> tuple[Case, Case]:
    return Case(seed, CPU, "cpu"), Case(seed, CUDA, DEVICE)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{name}.{key}")


def assert_same(found: Any, wanted: Any) -> None:
    """Every tensor in both: names, dtypes and bits."""
    pairs = list(zip(leaves(found), leaves(wanted), strict=True))
    assert pairs
    for (name, one), (other_name, other) in pairs:
        assert name == other_name
        assert one.dtype == other.dtype, name
        assert torch.equal(one.cpu(), other.cpu()), f"{name}: {one} is not {other}"


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_are_read_alike(seed, ended):
    cpu, cuda = both(seed)
    wanted, found = (each.operators.open_lanes(each.table, each.arguments, 5, ended) for each in (cpu, cuda))
    assert_same(found, wanted)


def test_the_draws_of_a_round_begin_where_the_domains_say():
    case = Case(3, CPU, "cpu")
    lanes = case.lanes()
    events = case.table.events[lanes.slots]
    for domain in (Domain.ORDINARY, Domain.VERIFY, Domain.SPARE):
        assert torch.equal(lanes.offsets[domain], offset(domain, events[:, domain]))
    first = offset(Domain.PROPOSAL, proposal_event(events[:, Domain.PROPOSAL], 0))
    assert torch.equal(lanes.offsets[Domain.PROPOSAL], first)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 3, 7])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_offer_is_made_alike(seed, depth, learned):
    results = []
    for case in both(seed):
        lanes = case.lanes()
        proposed = case.drawn(0, 3, EXTENT.lanes, 9).to(case.device)[:, 1 : 1 + depth]  # not dense
        results.append(case.operators.make_offer(proposed, learned, lanes, case.arguments, case.pages, VOCAB))
    assert_same(results[1], results[0])


def test_the_random_offers_hold_every_kind():
    """Copies that fit and ones that do not, learned drafts after a copy, cut lengths, dead lanes."""
    copied, dead, cut, learned, lengths = 0, 0, 0, 0, set()
    for seed in SEEDS:
        case = Case(seed, CPU, "cpu")
        lanes = case.lanes()
        proposed = case.drawn(0, 3, EXTENT.lanes, 7)
        offer = CPU.make_offer(proposed, True, lanes, case.arguments, case.pages, VOCAB)
        copied += int(offer.point.any(1).sum())
        learned += int((offer.point[:, 0] & ~offer.point[:, -1] & (offer.length == 7)).sum())
        dead += int((~lanes.live).sum())
        cut += int((lanes.live & (offer.length < 7)).sum())
        lengths |= set(offer.length.tolist())
    assert min(copied, dead, cut) >= 5
    assert lengths == set(range(8))


@pytest.mark.parametrize("width", [1, 6, 300])
def test_rows_are_placed_alike(width):
    results = []
    for case in both(width):
        counts, lengths = case.drawn(0, width + 1, EXTENT.lanes), case.drawn(0, EXTENT.context - 1, EXTENT.lanes)
        tokens, slots = case.drawn(0, VOCAB, width, EXTENT.lanes).T, case.drawn(0, 8, EXTENT.lanes)
        results.append(
            case.operators.causal_rows(*(x.to(case.device) for x in (tokens, counts, lengths, slots)), case.pages)
        )
    assert_same(results[1], results[0])


@pytest.mark.parametrize("width", [1, 2, 6, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_emission_is_clipped_alike(seed, width):
    wanted, found = (case.emission(case.lanes(), width) for case in both(seed))
    assert_same(found, wanted)


def test_the_random_emissions_hold_every_kind():
    found = set()
    for seed in range(60):
        case = Case(seed, CPU, "cpu")
        emission = case.emission(case.lanes(), 8)
        found |= set(zip(emission.terminal.tolist(), emission.count.tolist(), strict=True))
    assert {terminal for terminal, _ in found} == {0, 1, 2}
    assert {count for _, count in found} == set(range(9))


@pytest.mark.parametrize("width", [1, 6, 64])
@pytest.mark.parametrize("seed", SEEDS)
def test_crossings_are_found_alike(seed, width):
    results = []
    for case in both(seed):
        lengths, emitted = case.drawn(40, 80, EXTENT.lanes), case.drawn(0, width + 1, EXTENT.lanes)
        numbers = (x.to(case.device) for x in (lengths, emitted))
        results.append(case.operators.find_crossing(*numbers, case.arguments.boundary_slots, EXTENT.null_slot, width))
    assert_same(results[1], results[0])


@pytest.mark.parametrize("spent", [(), (Domain.ORDINARY,), (Domain.PROPOSAL, Domain.VERIFY)])
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_commit_and_its_record_are_written_alike(seed, width, spent):
    results = []
    for case in both(seed):
        lanes = case.lanes()
        emission = case.emission(lanes, width)
        hidden = torch.randn(2, EXTENT.lanes * width, FEEDBACK, generator=case.draws).to(case.device)
        move = Move(emission.count, hidden[0, :, :OUTPUT], hidden[1], tuple(map(int, spent)))
        case.operators.commit(case.table, lanes, move, emission)
        offered, sources = case.drawn(0, width, EXTENT.lanes), case.drawn(0, 4, EXTENT.lanes, width - 1)
        truths = case.drawn(0, 2, 2, EXTENT.lanes).bool().to(case.device)
        crossed = truths[1] if seed % 2 else None
        outcome = Outcome(lanes, emission, offered.to(case.device), sources.to(case.device), truths[0], crossed)
        records = torch.full((EXTENT.slots + 1, RECORD_FIELDS + EXTENT.width), -9, device=case.device)
        case.operators.write_records(case.table, outcome, records, width, 5)
        results.append((case.kept_state(), {"records": records[: EXTENT.null_slot]}))
    assert_same(results[1][0], results[0][0])
    assert_same(results[1][1], results[0][1])


def test_a_commit_that_consumes_without_emitting_moves_the_tail_alone():
    """A chunk of a prompt: many rows consumed, one of them last, nothing sampled."""
    results = []
    for case in both(1):
        lanes = case.lanes()
        nothing = torch.zeros_like(lanes.slots)
        emission = Emission(nothing[:, None], nothing[:, None].bool(), nothing, nothing, nothing)
        hidden = torch.randn(2, EXTENT.lanes * 20, FEEDBACK, generator=case.draws).to(case.device)
        consumed = case.drawn(0, 21, EXTENT.lanes).to(case.device).where(lanes.live, 0)
        case.operators.commit(case.table, lanes, Move(consumed, hidden[0, :, :OUTPUT], hidden[1]), emission)
        results.append(case.kept_state())
    assert_same(results[1], results[0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on what is not finite, which kernels do not
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_faults_are_found_in_active_rows_alone(width, dtype):
    generator = torch.Generator().manual_seed(width)
    output = torch.randn(6 * width, FEEDBACK, generator=generator, dtype=dtype)
    active = torch.rand(6, width, generator=generator) < 0.7
    active[0] = False
    for row, broken in enumerate((torch.nan, torch.inf, -torch.inf)):
        output[row * width, 1400] = broken
    output[3 * width, :2] = torch.tensor([torch.inf, -torch.inf])
    active[1:4, 0] = True
    wanted = CPU.find_faults(output, active, dtype)
    found = CUDA.find_faults(output.to(DEVICE), active.to(DEVICE), dtype)
    assert wanted.tolist() == [False, True, True, True, False, False]
    assert_same({"faults": found}, {"faults": wanted})
