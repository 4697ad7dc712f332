"""What a chain verifier must satisfy, as functions that take the implementation under test.

The same functions judge the real operator and the broken ones of `test_mutants.py`. B lanes, D drafts, V vocabulary.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from flare.ops.sampling import DraftLaw
from flare.ops.sampling.philox import uniform
from flare.sampling import Domain, offset, proposal_event
from tests.golden.philox import philox_reference

Verify = Callable[[Tensor, DraftLaw, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

VOCAB = 4
SIGNIFICANCE = 1e-6  # seeds are fixed, so a pass or a failure repeats; chance of a false alarm when a seed is changed


@dataclass(frozen=True)
class Scenario:
    """Where drafts come from: per position "learned" or "copy", then markers up to `depth`."""

    sources: tuple[str, ...]
    depth: int

    @property
    def length(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class World:
    """Laws that depend on the token before: p [D + 1, V, V], q [D, V, V] and copied tokens [D], rows by that token."""

    p: np.ndarray
    q: np.ndarray
    copies: np.ndarray


def world(scenario: Scenario, seed: int) -> World:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(VOCAB, 0.8), (scenario.depth + 1, VOCAB)).astype(np.float32)
    q = (0.5 * rng.dirichlet(np.full(VOCAB, 0.8), (scenario.depth, VOCAB)) + 0.5 * p[:-1]).astype(np.float32)
    p[:, :, 1] += 0.1  # every copy below has a chance
    p /= p.sum(-1, keepdims=True)
    return World(p, q / q.sum(-1, keepdims=True), np.ones(scenario.depth, np.int64))


def play(
    verify: Verify, scenario: Scenario, where: World, lanes: int, round_index: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """One round of `lanes` requests with seeds 0.. -> tokens [B, D + 1], accepted [B]; drafts are drawn from q."""
    depth, marker, seed = scenario.depth, VOCAB, torch.arange(lanes) * 7919 + 3
    drafts = np.full((lanes, depth), marker)
    p = np.zeros((lanes, depth + 1, marker + 1), np.float32)
    q = np.zeros((lanes, depth, marker + 1), np.float32)
    point = np.zeros((lanes, depth), bool)
    before = np.zeros(lanes, np.int64)
    for i in range(depth + 1):
        p[:, i, :marker] = where.p[i, before]
        if i >= scenario.length:
            continue
        if scenario.sources[i] == "copy":
            drafts[:, i], point[:, i] = where.copies[i], True
        else:
            q[:, i, :marker] = where.q[i, before]
            event = torch.full((lanes,), proposal_event(round_index, i))
            u = uniform(seed, offset(Domain.PROPOSAL, event)).numpy()
            drafts[:, i] = np.minimum((q[:, i, :marker].cumsum(-1) < u[:, None]).sum(-1), marker - 1)
        before = drafts[:, i]
    law = DraftLaw(torch.from_numpy(q) if "learned" in scenario.sources else None, torch.from_numpy(point))
    verify_offset = offset(Domain.VERIFY, torch.full((lanes,), round_index))
    tokens, accepted = verify(torch.from_numpy(p), law, torch.from_numpy(drafts), seed, verify_offset)
    return tokens.numpy(), accepted.numpy()


def exact_outcomes(scenario: Scenario, where: World) -> dict[tuple[int, ...], float]:
    """Probability of every emitted sequence, (accepted drafts, then the final token), by enumeration."""
    outcomes: dict[tuple[int, ...], float] = {}

    def visit(prefix: tuple[int, ...], weight: float) -> None:
        i, before = len(prefix), prefix[-1] if prefix else 0
        p = where.p[i, before].astype(np.float64)
        q = np.zeros(VOCAB)
        if i < scenario.length:
            q = where.q[i, before].astype(np.float64)
            if scenario.sources[i] == "copy":
                q = np.eye(VOCAB)[where.copies[i]]
        for token in range(VOCAB):
            both, left = min(p[token], q[token]), max(p[token] - q[token], 0.0)
            # P(reject) * left / sum(left) = left, because both sums are 1 - sum(min(p, q)).
            outcomes[(*prefix, token)] = outcomes.get((*prefix, token), 0.0) + weight * left
            if both > 0:
                visit((*prefix, token), weight * both)

    visit((), 1.0)
    return outcomes


def check_counts(observed: Counter, expected: dict, total: int) -> None:
    """Chi-square of observed counts against exact probabilities; outcomes of probability 0 must not occur."""
    impossible = [outcome for outcome in observed if expected.get(outcome, 0.0) <= 0.0]
    assert not impossible, f"impossible outcomes {impossible[:3]}"
    common = [outcome for outcome, chance in expected.items() if chance * total >= 10]
    f_obs = np.array([observed[o] for o in common] + [total - sum(observed[o] for o in common)], float)
    f_exp = np.array([expected[o] * total for o in common] + [total - sum(expected[o] for o in common) * total])
    if f_exp[-1] < 5:  # too rare to test alone
        f_obs, f_exp = np.append(f_obs[:-2], f_obs[-2:].sum()), np.append(f_exp[:-2], f_exp[-2:].sum())
    statistic = float(((f_obs - f_exp) ** 2 / f_exp).sum()) if len(f_exp) > 1 else 0.0
    tail = stats.chi2.sf(statistic, max(len(f_exp) - 1, 1))
    assert tail > SIGNIFICANCE, f"chi-square {statistic:.1f} at {len(f_exp) - 1} degrees of freedom"


def check_well_formed(tokens: np.ndarray, accepted: np.ndarray, length: int, vocab: int) -> None:
    """Accepted stays in 0..c, the emitted slots hold vocabulary ids, what follows is -1."""
    assert ((accepted >= 0) & (accepted <= length)).all(), "accepted outside 0..c"
    emitted = np.arange(tokens.shape[1]) <= accepted[:, None]
    assert ((tokens >= 0) & (tokens < vocab))[emitted].all(), "an emitted slot holds -1 or the marker"
    assert (tokens[~emitted] == -1).all(), "a slot after the emitted ones is not -1"


def check_chain_law(verify: Verify, scenario: Scenario, seed: int = 0, lanes: int = 20_000) -> None:
    """Emitted sequences follow the enumeration, and token j, given that it is emitted, follows p_j of its prefix."""
    where = world(scenario, seed)
    tokens, accepted = play(verify, scenario, where, lanes)
    check_well_formed(tokens, accepted, scenario.length, VOCAB)
    sequences = [tuple(row[: a + 1].tolist()) for row, a in zip(tokens, accepted, strict=True)]
    expected = exact_outcomes(scenario, where)
    check_counts(Counter(sequences), expected, lanes)
    for j in range(scenario.length + 1):
        for before in range(VOCAB) if j else [0]:
            reached = [s[j] for s in sequences if len(s) > j and (j == 0 or s[j - 1] == before)]
            if len(reached) >= 1000:
                law = dict(enumerate(where.p[j, before].astype(np.float64).tolist()))
                check_counts(Counter(reached), law, len(reached))


def check_rounds_are_independent(verify: Verify, scenario: Scenario, seed: int = 0, lanes: int = 20_000) -> None:
    """First tokens of two rounds of the same request are jointly distributed as two independent draws of p_0."""
    where = world(scenario, seed)
    first, second = (play(verify, scenario, where, lanes, round_index)[0][:, 0] for round_index in (0, 1))
    p = where.p[0, 0].astype(np.float64)
    joint = {(a, b): p[a] * p[b] for a, b in product(range(VOCAB), repeat=2)}
    check_counts(Counter(zip(first.tolist(), second.tolist(), strict=True)), joint, lanes)


def check_chain_equals_kernel(verify: Verify, seed: int = 0, lanes: int = 3000, vocab: int = 33) -> None:
    """Tokens and accepted counts equal FlashInfer's law draw for draw, away from edges, for every depth 0..7."""
    rng = np.random.default_rng(seed)
    for depth in range(8):
        p = rng.dirichlet(np.full(vocab, 0.3), (lanes, depth + 1)).astype(np.float32)
        q = (0.3 * rng.dirichlet(np.full(vocab, 0.3), (lanes, depth)) + 0.7 * p[:, :depth]).astype(np.float32)
        length = rng.integers(0, depth + 1, lanes)
        point = (rng.random((lanes, depth)) < 0.3) & (np.arange(depth) < length[:, None])
        drafts = (q.cumsum(-1) < rng.random((lanes, depth, 1)) * 0.999).sum(-1)
        drafts = np.where(np.arange(depth) < length[:, None], np.minimum(drafts, vocab - 1), vocab)
        seeds, offsets = rng.integers(-(2**63), 2**63 - 1, lanes), rng.integers(0, 2**62, lanes)
        p, q = (np.concatenate([x, np.zeros_like(x[..., :1])], -1) for x in (p, q))
        law = DraftLaw(torch.from_numpy(q), torch.from_numpy(point))
        tokens, accepted = verify(
            torch.from_numpy(p.copy()),
            law,
            torch.from_numpy(drafts),
            torch.from_numpy(seeds),
            torch.from_numpy(offsets),
        )
        check_well_formed(tokens.numpy(), accepted.numpy(), depth, vocab)
        q = np.where(point[..., None], np.eye(vocab + 1, dtype=np.float32)[drafts], q)
        q[drafts == vocab] = 0
        p[..., vocab] = -1  # as unacceptable as 0, and the oracle does not call it an edge
        ids, _, emitted, _, near = philox_reference.chain(
            q, drafts, p, seeds.astype(np.uint64), 0, offsets.astype(np.uint64)
        )
        assert near.mean() < 0.01
        assert (tokens.numpy() == ids)[~near].all(), "tokens differ from the kernel's law"
        assert (accepted.numpy() == emitted)[~near].all(), "accepted differs from the kernel's law"
