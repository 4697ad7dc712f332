"""What a target law must satisfy, as functions that take the implementation under test.

The same functions judge the real operator and the broken ones of `test_mutants.py`. B lanes, W rows, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch
from torch import Tensor

from flare.ops.sampling import LawRows, PolicyTable

Law = Callable[..., Tensor]


@dataclass(frozen=True)
class Policy:
    """One request's policy and history in plain Python."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition: float
    presence: float
    frequency: float
    bias: dict[int, float]
    min_tokens: int
    stops: list[int]
    prompt: list[int]
    generated: list[int]  # the last one is pending

    @property
    def plain(self) -> bool:
        return (self.repetition, self.presence, self.frequency) == (1.0, 0.0, 0.0) and not self.bias

    def after(self, drafts: list[int]) -> "Policy":
        """The same request once these drafts were emitted."""
        return replace(self, generated=self.generated + drafts)


@dataclass(frozen=True)
class Lane:
    """One lane of a round: its policy, drafts, one logits list and one allowed set (or None) per row."""

    policy: Policy
    drafts: list[int]
    logits: list[list[float]]
    allowed: list[set[int] | None]


def single(value: float) -> float:
    """The float32 nearest to a number, as a float."""
    return float(np.float32(value))


def make_lane(random: Random, vocab: int, drafts: int) -> Lane:
    """A lane whose logits hold many ties, and whose features are each off about half of the time."""

    def some(*choices: float) -> float:
        return single(random.choice(choices))

    def tokens(most: int) -> list[int]:
        return [random.randrange(vocab) for _ in range(random.randint(0, most))]

    plain = random.random() < 0.3
    policy = Policy(
        temperature=some(0.0, 0.3, 0.7, 1.0, 1.0, 1.5),
        top_k=random.choice([0, 0, 1, 2, 3, 5, vocab - 1, vocab, vocab + 5]),
        top_p=some(1.0, 1.0, 0.95, 0.7, 0.4, 0.05),
        min_p=some(0.0, 0.0, 0.02, 0.2),
        repetition=1.0 if plain else some(1.0, 1.3, 0.8),
        presence=0.0 if plain else some(0.0, 0.6, -0.4),
        frequency=0.0 if plain else some(0.0, 0.35, -0.2),
        bias={} if plain else {t: some(-3.0, 2.5, 0.7) for t in tokens(3)},
        min_tokens=random.choice([0, 0, 2, 4, 6]),
        stops=sorted(set(tokens(3)))[: vocab - 1],
        prompt=tokens(6),
        generated=[*tokens(3), random.randrange(vocab)],
    )
    half = random.random() < 0.5
    rows = [
        [random.randint(-8, 8) / 2 if half else single(random.uniform(-5, 5)) for _ in range(vocab)]
        for _ in range(drafts + 1)
    ]
    masked = random.random() < 0.4
    # A mask and min_tokens that leave nothing are outside the law, so one token that is no stop stays allowed.
    free = random.choice([t for t in range(vocab) if t not in policy.stops])
    allowed = [{free, *tokens(vocab)} if masked else None for _ in rows]
    return Lane(policy, [random.randrange(vocab) for _ in range(drafts)], rows, allowed)


def oracle(policy: Policy, logits: list[float], allowed: set[int] | None) -> tuple[list[float], bool]:
    """The law after a prefix, token by token in float64 -> probabilities, and whether a cut is too close to call."""
    x: list[float] = []
    for token, logit in enumerate(logits):
        value = logit + policy.bias.get(token, 0.0)
        count = policy.generated.count(token)
        if count or token in policy.prompt:
            value = value / policy.repetition if value > 0 else value * policy.repetition
        value = value - policy.frequency * count - policy.presence * (1.0 if count else 0.0)
        if len(policy.generated) < policy.min_tokens and token in policy.stops:
            value = -math.inf
        if allowed is not None and token not in allowed:
            value = -math.inf
        x.append(value)
    if policy.temperature == 0:
        best = max(range(len(x)), key=lambda t: (x[t], -t))
        return [float(t == best) for t in range(len(x))], False

    kept = [t for t in range(len(x)) if not policy.top_k or sum(other > x[t] for other in x) < policy.top_k]
    mass = {t: math.exp((x[t] - max(x)) / policy.temperature) for t in kept}
    total, near = sum(mass.values()), False
    before = {t: sum(m for o, m in mass.items() if x[o] > x[t]) / total for t in kept}
    if policy.top_p < 1:
        near = any(abs(b - policy.top_p) < 1e-9 for b in before.values())
        kept = [t for t in kept if before[t] < policy.top_p or x[t] == max(x)]
    near = near or any(abs(mass[t] - policy.min_p) < 1e-9 for t in kept if policy.min_p)
    kept = [t for t in kept if mass[t] >= policy.min_p]
    total = sum(mass[t] for t in kept)
    return [mass[t] / total if t in kept else 0.0 for t in range(len(x))], near


def tables(policies: list[Policy], vocab: int) -> PolicyTable:
    """The policy tables of requests in slots 0.., and a null slot filled with values that must not be read."""
    slots = len(policies) + 1

    def column(name: str, dtype: torch.dtype, null: float) -> Tensor:
        return torch.tensor([getattr(p, name) for p in policies] + [null], dtype=dtype)

    prompt, generated = (torch.full((slots, vocab), 10_000, dtype=torch.int32) for _ in range(2))
    bias, stops = torch.full((slots, vocab), math.nan), torch.full((slots, 17), -1)
    for s, policy in enumerate(policies):
        prompt[s] = torch.bincount(torch.tensor(policy.prompt, dtype=torch.int64), minlength=vocab)
        generated[s] = torch.bincount(torch.tensor(policy.generated, dtype=torch.int64), minlength=vocab)
        bias[s] = 0.0
        for token, value in policy.bias.items():
            bias[s, token] = value
        stops[s, : len(policy.stops)] = torch.tensor(policy.stops, dtype=torch.int64)
    floats = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
    return PolicyTable(
        **{name: column(name, torch.float32, math.nan) for name in floats},
        **{name: column(name, torch.int64, 0) for name in ("top_k", "min_tokens")},
        generated=torch.tensor([len(p.generated) for p in policies] + [0]),
        stops=stops,
        prompt_counts=prompt,
        generated_counts=generated,
        bias=bias,
        plain=column("plain", torch.bool, False),
    )


def run_law(law: Law, lanes: list[Lane | None], vocab: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Lay lanes (None: dead) out as one round of `width` rows, poison what must not be read -> out [B, W, V + 1]."""
    real = [lane for lane in lanes if lane is not None]
    batch, words = len(lanes), -(-vocab // 32)
    logits = torch.full((batch, width, vocab), math.nan, dtype=dtype)
    tokens, masks = torch.full((batch, width), vocab), torch.zeros((batch, width, words), dtype=torch.int32)
    length, slots, masked = torch.zeros(batch, dtype=torch.int64), torch.full((batch,), len(real)), [False] * batch
    for b, lane in enumerate(lanes):
        if lane is None:
            continue
        # Slots run backwards, so that a lane index never stands in for a slot by luck.
        length[b], slots[b] = len(lane.drafts), len(real) - 1 - next(i for i, r in enumerate(real) if r is lane)
        tokens[b, 0] = lane.policy.generated[-1]
        tokens[b, 1 : len(lane.drafts) + 1] = torch.tensor(lane.drafts, dtype=torch.int64)
        for w, (row, allowed) in enumerate(zip(lane.logits, lane.allowed, strict=True)):
            logits[b, w] = torch.tensor(row, dtype=dtype)
            if allowed is not None:
                masked[b] = True
                bits = np.zeros(words * 32, bool)
                bits[list(allowed)] = True
                masks[b, w] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy())
    live = torch.tensor([lane is not None for lane in lanes])
    rows = LawRows(tokens, length, live, slots, masks, torch.tensor(masked))
    out = torch.full((batch, width, vocab + 1), math.nan, dtype=dtype)
    policy = tables([lane.policy for lane in reversed(real)], vocab)
    assert law(logits, rows, policy, out=out) is out
    return out


def check_law_round(law: Law, lanes: list[Lane | None], vocab: int, width: int) -> None:
    """Every consulted row equals the oracle after its prefix; every other row is a point mass on 0."""
    out = run_law(law, lanes, vocab, width)
    assert (out[..., vocab] == 0).all(), "the marker column is not 0"
    torch.testing.assert_close(out.sum(-1), torch.ones(out.shape[:2], dtype=out.dtype), rtol=0, atol=1e-12)
    for b, lane in enumerate(lanes):
        consulted = 0 if lane is None else len(lane.drafts) + 1
        assert (out[b, consulted:, 0] == 1).all(), "a row that is never consulted is not a point mass on 0"
        if lane is None:
            continue
        for w in range(consulted):
            want, near = oracle(lane.policy.after(lane.drafts[:w]), lane.logits[w], lane.allowed[w])
            if not near:
                got, wanted = out[b, w, :vocab], torch.tensor(want, dtype=torch.float64)
                assert torch.equal(got > 0, wanted > 0), f"survivors differ in row {w}"
                torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def make_round(random: Random) -> tuple[list[Lane | None], int, int]:
    """Random lanes, vocabulary and width of one round; about one lane in six is dead."""
    vocab, width = random.randint(4, 40), random.randint(1, 6)
    lanes = [
        None if random.random() < 0.17 else make_lane(random, vocab, random.randint(0, width - 1))
        for _ in range(random.randint(1, 3))
    ]
    return lanes, vocab, width


def check_law(law: Law, rounds: int = 150) -> None:
    """`check_law_round` over seeded random rounds."""
    for seed in range(rounds):
        check_law_round(law, *make_round(Random(seed)))


def check_rows_equal_one_token_laws(law: Law, rounds: int = 60) -> None:
    """Row w is, bit for bit, the law of one-token decoding after its drafts moved into the counts."""
    for seed in range(rounds):
        random = Random(seed)
        vocab, width = random.randint(4, 200), random.randint(2, 8)
        lane = make_lane(random, vocab, width - 1)
        wide = run_law(law, [lane], vocab, width, torch.float32)
        for w in range(width):
            alone = Lane(lane.policy.after(lane.drafts[:w]), [], [lane.logits[w]], [lane.allowed[w]])
            assert torch.equal(run_law(law, [alone], vocab, 1, torch.float32)[0, 0], wide[0, w]), f"row {w} differs"
