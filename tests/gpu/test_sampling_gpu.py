"""Sampling inside captured graphs: the law by chi-square, FlashInfer's tokens, the CPU's draws, no hidden generator."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from flare.device.stopwatch import Recorded, median_us, stopwatch
from flare.ops.sampling import DraftLaw, LawRows, PolicyTable, chain_cpu, law_cpu
from flare.ops.sampling.cuda import chain_verify_flashinfer
from flare.ops.sampling.cuda_chain import chain_verify
from flare.ops.sampling.cuda_law import target_law
from flare.sampling.domains import Domain, offset, proposal_event
from tests.ops.sampling.device import DEVICE, moved
from tests.ops.sampling.test_cuda_chain import wide_round
from tests.sampling.chain_checks import Scenario, check_chain_equals_kernel, check_chain_law

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]
SIGNIFICANCE = 1e-6
LANES, REPLAYS = 512, 500  # 256,000 chains


def policies(slots: int, vocab: int, *, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0) -> PolicyTable:
    """One policy without penalties in every slot."""
    real, whole = torch.ones(slots), torch.ones(slots, dtype=torch.int64)
    counts = torch.zeros(slots, vocab, dtype=torch.int32)
    return PolicyTable(
        temperature=real * temperature, top_p=real * top_p, min_p=real * 0, repetition=real.clone(), presence=real * 0,
        frequency=real * 0, top_k=whole * top_k, min_tokens=whole * 0, generated=whole, prompt_counts=counts,
        stops=torch.full((slots, 17), -1), generated_counts=counts.clone(), bias=torch.zeros(slots, vocab),
        plain=torch.ones(slots, dtype=torch.bool),
    )  # fmt: skip


def live_rows(lanes: int, width: int, vocab: int) -> LawRows:
    return LawRows(
        tokens=torch.zeros(lanes, width, dtype=torch.int64), length=torch.full((lanes,), width - 1),
        live=torch.ones(lanes, dtype=torch.bool), slots=torch.arange(lanes),
        masks=torch.zeros(lanes, width, -(-vocab // 32), dtype=torch.int32),
        masked=torch.zeros(lanes, dtype=torch.bool),
    )  # fmt: skip


class CapturedRounds:
    """Rounds of drafting from q, the laws of both, and verification in one graph; every replay is a new event.

    Lanes share their logits; lane 3 has the seed of lane 0. `shared` verifies with the draws of the proposals.
    """

    def __init__(self, lanes: int, depth: int, vocab: int, shared: bool = False) -> None:
        generator = torch.Generator().manual_seed(5)
        logits = 1.5 * torch.randn(1, depth + 1, vocab, generator=generator)
        drafted = logits[:, :depth] + torch.randn(1, depth, vocab, generator=generator)
        self.logits, drafted = (x.expand(lanes, -1, -1).contiguous().to(DEVICE) for x in (logits, drafted))
        self.policy = moved(policies(lanes, vocab, top_k=vocab - 3, top_p=0.95))
        rows, draft_rows = moved(live_rows(lanes, depth + 1, vocab)), moved(live_rows(lanes, depth, vocab))
        self.p = torch.empty(lanes, depth + 1, vocab + 1, device=DEVICE)
        self.q = torch.empty(lanes, depth, vocab + 1, device=DEVICE)
        seeds = torch.arange(lanes, device=DEVICE) * 7919 + 3
        seeds[3] = seeds[0]
        self.events = torch.zeros(lanes, dtype=torch.int64, device=DEVICE)
        self.seen = torch.zeros(2, vocab + 1, dtype=torch.int64, device=DEVICE)
        self.tokens = torch.zeros(lanes, depth + 1, dtype=torch.int64, device=DEVICE)
        nothing = seeds[:, None][:, :0]

        def one_round() -> None:
            target_law(drafted, draft_rows, self.policy, out=self.q)
            target_law(self.logits, rows, self.policy, out=self.p)
            starts = [offset(Domain.PROPOSAL, proposal_event(self.events, i)) for i in range(depth)]
            drafts = [
                chain_verify(self.q[:, i : i + 1], DraftLaw(None, nothing.bool()), nothing, seeds, start)[0]
                for i, start in enumerate(starts)
            ]
            tail = torch.cat(drafts, 1)
            law = DraftLaw(self.q, torch.zeros_like(tail, dtype=torch.bool))
            # The draws of a round's first proposal, where the control asks for them.
            start = starts[0] if shared else offset(Domain.VERIFY, self.events)
            tokens, accepted = chain_verify(self.p, law, tail, seeds, start)
            self.tokens.copy_(tokens)
            # Lane 3 repeats lane 0; the second token counts where it was verified, else in the marker's column.
            second = torch.where(accepted > 0, tokens[:, 1], vocab)
            for counts, column in ((self.seen[0], tokens[:, 0]), (self.seen[1], second)):
                distinct = torch.cat((column[:3], column[4:]))
                counts.scatter_add_(0, distinct, torch.ones_like(distinct))
            self.events.add_(1)

        self.recorded: Recorded = stopwatch("cuda").record(one_round)
        self.seen.zero_()
        self.events.zero_()
        torch.cuda.synchronize()

    def play(self, replays: int) -> None:
        for _ in range(replays):
            self.recorded.replay()
        self.recorded.wait()


def tail_probability(seen: Tensor, law: Tensor) -> float:
    """Chance of a chi-square this large; 0 where a token outside the support was seen."""
    seen, law = seen.double().cpu().numpy(), law.double().cpu().numpy()
    if seen[law == 0].any():
        return 0.0
    expected = law[law > 0] * seen.sum()
    statistic = float(((seen[law > 0] - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, (law > 0).sum() - 1))


def test_tokens_of_a_captured_round_follow_the_law():
    rounds = CapturedRounds(LANES, 3, 24)
    rounds.play(REPLAYS)
    assert int(rounds.seen[0].sum()) == REPLAYS * (LANES - 1)
    for row in (0, 1):
        assert tail_probability(rounds.seen[row, :24], rounds.p[0, row, :24]) > SIGNIFICANCE


def test_verification_with_the_proposal_draws_fails_the_chi_square():
    rounds = CapturedRounds(LANES, 3, 24, shared=True)
    rounds.play(REPLAYS)
    assert tail_probability(rounds.seen[0, :24], rounds.p[0, 0, :24]) < SIGNIFICANCE


def test_a_thousand_replays_draw_anew_and_alike_in_lanes_of_one_seed():
    rounds, found = CapturedRounds(4, 3, 5000), []
    for _ in range(1000):
        rounds.play(1)
        assert torch.equal(rounds.tokens[0], rounds.tokens[3])
        found.append(tuple(rounds.tokens[:3].flatten().tolist()))
    assert len(set(found)) == 1000


def test_replays_use_no_torch_generator_and_no_memory():
    rounds = CapturedRounds(4, 3, 5000)
    rounds.play(3)
    state, stats_before = torch.cuda.get_rng_state(), torch.cuda.memory_stats()["allocation.all.allocated"]
    rounds.play(100)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == stats_before
    assert torch.equal(torch.cuda.get_rng_state(), state)
    first = rounds.tokens.clone()
    torch.manual_seed(99)
    rounds.events.fill_(102)
    rounds.play(1)
    assert torch.equal(rounds.tokens, first)


@pytest.mark.parametrize("sources", [(), ("learned",), ("copy", "learned"), ("learned", "copy", "learned")])
def test_emitted_tokens_follow_the_target_law(sources: tuple[str, ...]):
    check_chain_law(on_device(chain_verify), Scenario(sources, 3))


def on_device(verify):
    def run(p, law, drafts, seed, start):
        tokens, accepted = verify(*(p.to(DEVICE), moved(law)), *(x.to(DEVICE) for x in (drafts, seed, start)))
        return tokens.cpu(), accepted.cpu()

    return run


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch):
    """FlashInfer's prebuilt module; building one is an error."""
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    return on_device(chain_verify_flashinfer)


def test_flashinfer_equals_its_law_draw_for_draw(flashinfer):
    check_chain_equals_kernel(flashinfer, seed=11, lanes=60)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_flashinfer_and_the_cpu_give_the_tokens_of_the_kernels(flashinfer, learned: bool, depth: int):
    p, q, point, drafts, seed, start = wide_round(np.random.default_rng(depth), 100, depth, 9001)
    law = DraftLaw(q, point) if learned else DraftLaw(None, drafts < 9001)
    mine, theirs, cpu = (
        verify(p, law, drafts, seed, start) for verify in (on_device(chain_verify), flashinfer, chain_cpu.chain_verify)
    )
    for other in (theirs, cpu):
        # A draw within rounding of an edge may fall on either side of it; FlashInfer sums in float32.
        assert ((mine[0] != other[0]).any(1)).sum() <= 2
        assert (mine[1] != other[1]).sum() <= 1


def test_one_row_calls_are_captured_and_replayed(flashinfer):
    p, q, point, drafts, seed, start = (x.to(DEVICE) for x in wide_round(np.random.default_rng(3), 4, 5, 9001))
    results: list[tuple[Tensor, Tensor]] = []

    def work() -> None:
        results.append(chain_verify_flashinfer(p, DraftLaw(q, point), drafts, seed, start))

    recorded = stopwatch("cuda").record(work)
    for _ in range(20):
        recorded.replay()
        recorded.wait()
        want = chain_verify(p, DraftLaw(q, point), drafts, seed, start)
        assert torch.equal(results[-1][0], want[0])
        assert torch.equal(results[-1][1], want[1])
        start += 16


@pytest.mark.parametrize(("top_k", "top_p"), [(20, 0.95), (0, 1.0), (0, 0.9), (3000, 0.999), (1, 1.0)])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_laws_of_a_large_vocabulary_equal_the_cpu_and_sample_its_tokens(top_k: int, top_p: float, temperature: float):
    lanes, width, vocab = 2, 3, 151_936
    # Half of the logits as a bfloat16 head leaves them: with many ties.
    logits = 3 * torch.randn(lanes, width, vocab, generator=torch.Generator().manual_seed(1))
    logits[1] = logits[1].bfloat16().float()
    rows = live_rows(lanes, width, vocab)
    policy = policies(lanes, vocab, top_k=top_k, top_p=top_p, temperature=temperature)
    want, got = torch.empty(lanes, width, vocab + 1), torch.full((lanes, width, vocab + 1), torch.nan, device=DEVICE)
    law_cpu.target_law(logits, rows, policy, out=want)
    for _ in range(2):
        target_law(logits.to(DEVICE), moved(rows), moved(policy), out=got)
        assert torch.equal(got.cpu() > 0, want > 0)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-12)
    nothing, seed = torch.zeros(lanes * width, 0, dtype=torch.int64), torch.arange(lanes * width)
    drawn = [
        verify(law.view(-1, 1, vocab + 1), DraftLaw(None, nothing.bool()), nothing, seed, seed * 4)[0]
        for verify, law in ((on_device(chain_verify), got), (chain_cpu.chain_verify, want))
    ]
    assert torch.equal(*drawn)


def test_one_graph_serves_every_policy():
    lanes, width, vocab = 4, 3, 49_152
    logits, rows = 3 * torch.randn(lanes, width, vocab, device=DEVICE), moved(live_rows(lanes, width, vocab))
    policy, out = moved(policies(lanes, vocab)), torch.empty(lanes, width, vocab + 1, device=DEVICE)
    recorded = stopwatch("cuda").record(lambda: target_law(logits, rows, policy, out=out))
    for top_k, top_p, temperature in ((20, 0.95, 1.0), (0, 1.0, 1.0), (0, 0.9, 0.6), (500, 1.0, 1.0), (0, 1.0, 0.0)):
        policy.top_k.fill_(top_k)
        policy.top_k[1] = 20  # lanes of one round differ
        policy.top_p.fill_(top_p)
        policy.temperature.fill_(temperature)
        torch.cuda.synchronize()
        recorded.replay()
        recorded.wait()
        eager = target_law(logits, rows, policy, out=torch.full_like(out, torch.nan))
        assert torch.equal(out, eager)
        alone = replace(rows, **{name: getattr(rows, name)[1:2] for name in vars(rows)})
        one = target_law(logits[1:2], alone, policy, out=torch.full_like(out[1:2], torch.nan))
        assert torch.equal(out[1:2], one)
        narrow = replace(alone, tokens=alone.tokens[:, :1], length=alone.length * 0, masks=alone.masks[:, :1])
        first = target_law(logits[1:2, :1], narrow, policy, out=torch.full_like(out[1:2, :1], torch.nan))
        assert torch.equal(out[1:2, :1], first)


def test_law_and_chain_of_four_requests_take_at_most_210_us():
    lanes, width, vocab = 4, 6, 151_936
    logits, rows = 3 * torch.randn(lanes, width, vocab, device=DEVICE), moved(live_rows(lanes, width, vocab))
    policy, out = (
        moved(policies(lanes, vocab, top_k=20, top_p=0.95)),
        torch.empty(lanes, width, vocab + 1, device=DEVICE),
    )
    drafts, seed = logits[:, :-1].argmax(-1), torch.arange(lanes, device=DEVICE)

    def work() -> None:
        p = target_law(logits, rows, policy, out=out)
        chain_verify(p, DraftLaw(None, torch.ones_like(drafts, dtype=torch.bool)), drafts, seed, seed)

    assert median_us(stopwatch("cuda"), work) <= 210
