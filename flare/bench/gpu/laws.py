"""Sampling on the device: what the law and the chain cost, whether they draw from the law, and the same as a CPU.

Shapes: B lanes, W = D + 1 rows, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flare import ops
from flare.bench.gpu.visit import Visit
from flare.contract.policies import STOP_IDS
from flare.device.stopwatch import median_us
from flare.ops.operators import Operators
from flare.ops.sampling import DraftLaw, LawRows, PolicyTable
from flare.sampling.domains import STRIDES, Domain, offset

KERNELS_SHOWN = 12
LANES = 4


def measure(visit: Visit) -> dict[str, Any]:
    """Times with their kernels; the chi-square of captured rounds; draws of both kinds of device side by side."""
    operators = ops.load(visit.device)
    return {
        "law": timed(visit, operators),
        "chi_square": captured_chi_square(visit, operators),
        "same_draws_as_cpu": compared(visit, operators),
    }


def policy_table(slots: int, vocab: int, device: str, *, top_k: int, top_p: float) -> PolicyTable:
    """One policy in every slot, without penalties."""
    real = {"dtype": torch.float32, "device": device}
    whole = {"dtype": torch.int64, "device": device}
    counts = torch.zeros(slots, vocab, dtype=torch.int32, device=device)
    return PolicyTable(
        temperature=torch.full((slots,), 1.0, **real),
        top_p=torch.full((slots,), top_p, **real),
        min_p=torch.zeros(slots, **real),
        repetition=torch.ones(slots, **real),
        presence=torch.zeros(slots, **real),
        frequency=torch.zeros(slots, **real),
        top_k=torch.full((slots,), top_k, **whole),
        min_tokens=torch.zeros(slots, **whole),
        generated=torch.ones(slots, **whole),
        stops=torch.full((slots, STOP_IDS), -1, **whole),
        prompt_counts=counts,
        generated_counts=counts.clone(),
        bias=torch.zeros(slots, vocab, **real),
        plain=torch.ones(slots, dtype=torch.bool, device=device),
    )


def law_rows(lanes: int, width: int, vocab: int, device: str) -> LawRows:
    """Live lanes whose rows are all valid."""
    tokens = torch.randint(0, vocab, (lanes, width), generator=torch.Generator().manual_seed(1))
    return LawRows(
        tokens=tokens.to(device),
        length=torch.full((lanes,), width - 1, device=device),
        live=torch.ones(lanes, dtype=torch.bool, device=device),
        slots=torch.arange(lanes, device=device),
        masks=torch.zeros(lanes, width, -(-vocab // 32), dtype=torch.int32, device=device),
        masked=torch.zeros(lanes, dtype=torch.bool, device=device),
    )


def timed(visit: Visit, operators: Operators) -> dict[str, Any]:
    """Microseconds of the law, of the chain over copies and over learned drafts, and of law and chain together."""
    (lanes, width, vocab), device, watch = visit.sizes.law, visit.device, visit.watch
    rows = law_rows(lanes, width, vocab, device)
    policy = policy_table(lanes + 1, vocab, device, top_k=20, top_p=0.95)
    logits = 3 * torch.randn(lanes, width, vocab, device=device)
    p, q = (torch.zeros(lanes, width, vocab + 1, device=device) for _ in range(2))
    operators.target_law(logits + torch.randn_like(logits), rows, policy, out=q)
    operators.target_law(logits, rows, policy, out=p)
    drafts = q[:, :-1, :-1].argmax(-1)
    copied = DraftLaw(None, torch.ones_like(drafts, dtype=torch.bool))
    learned = DraftLaw(q[:, :-1].contiguous(), torch.zeros_like(drafts, dtype=torch.bool))
    seeds, offsets = torch.arange(lanes, device=device), torch.zeros(lanes, dtype=torch.int64, device=device)

    def law() -> None:
        operators.target_law(logits, rows, policy, out=p)

    def chain(draft_law: DraftLaw) -> None:
        operators.chain_verify(p, draft_law, drafts, seeds, offsets)

    def together() -> None:
        law()
        chain(copied)

    times = {
        "law_us": median_us(watch, law, replays=visit.sizes.replays),
        "chain_over_copies_us": median_us(watch, lambda: chain(copied), replays=visit.sizes.replays),
        "chain_over_learned_us": median_us(watch, lambda: chain(learned), replays=visit.sizes.replays),
        "law_and_chain_us": median_us(watch, together, replays=visit.sizes.replays),
    }
    dense = replace(policy, top_k=torch.zeros_like(policy.top_k))

    def dense_law() -> None:
        operators.target_law(logits, rows, dense, out=p)

    times["law_without_top_k_us"] = median_us(watch, dense_law, replays=visit.sizes.replays)
    shown = watch.kernels(watch.record(together))[:KERNELS_SHOWN]
    return {"shape": [lanes, width, vocab], "top_k": 20, "top_p": 0.95, **times, "kernels": shown}


def captured_chi_square(visit: Visit, operators: Operators) -> dict[str, Any]:
    """One recorded round, replayed with advancing events: the first token of a chain of drafts against its law."""
    vocab, depth, device, watch = visit.sizes.small_vocab, 2, visit.device, visit.watch
    generator = torch.Generator().manual_seed(5)
    logits = (2 * torch.randn(1, depth + 1, vocab, generator=generator)).expand(LANES, -1, -1).contiguous().to(device)
    rows, policy = law_rows(LANES, depth + 1, vocab, device), policy_table(LANES + 1, vocab, device, top_k=0, top_p=0.9)
    p = torch.zeros(LANES, depth + 1, vocab + 1, device=device)
    q = torch.zeros(LANES, depth, vocab + 1, device=device)
    draft_rows = law_rows(LANES, depth, vocab, device)
    draft_logits = (logits[:, :depth] + torch.randn(1, depth, vocab, generator=generator).to(device)).contiguous()
    # Lanes 0 and 3 have one seed between them, so they must draw alike.
    seeds = torch.tensor([7, 8, 9, 7], device=device)
    events = torch.zeros(LANES, dtype=torch.int64, device=device)
    seen = torch.zeros(vocab, dtype=torch.int64, device=device)
    unequal = torch.zeros(1, dtype=torch.int64, device=device)
    last = torch.zeros(LANES, depth + 1, dtype=torch.int64, device=device)

    def one_round() -> None:
        operators.target_law(draft_logits, draft_rows, policy, out=q)
        operators.target_law(logits, rows, policy, out=p)
        drafts = torch.cat([_draw(operators, q[:, step : step + 1], seeds, events, step) for step in range(depth)], 1)
        law = DraftLaw(q, torch.zeros_like(drafts, dtype=torch.bool))
        tokens, _ = operators.chain_verify(p, law, drafts, seeds, offset(Domain.VERIFY, events))
        seen.scatter_add_(0, tokens[:3, 0], torch.ones_like(tokens[:3, 0]))
        unequal.add_((tokens[0] != tokens[3]).any().long())
        last.copy_(tokens)
        events.add_(1)

    recorded = watch.record(one_round)
    for tensor in (seen, unequal, events):
        tensor.zero_()
    recorded.wait()
    distinct = set()
    for index in range(visit.sizes.draws):
        recorded.replay()
        if index < visit.sizes.long_replays:
            recorded.wait()
            distinct.add(tuple(last.flatten().tolist()))
    recorded.wait()
    return {
        **chi_square(seen.cpu(), p[0, 0, :-1].double().cpu()),
        "rounds": visit.sizes.draws,
        "rounds_where_lanes_0_and_3_differ": int(unequal),
        "distinct_results_of_the_first_rounds": len(distinct),
    }


def chi_square(seen: Tensor, law: Tensor) -> dict[str, float | bool]:
    """Pearson's statistic over words of some mass; `holds` below the mean plus five deviations."""
    total = int(seen.sum())
    kept = law * total >= 5
    expected = torch.cat((law[kept], law[~kept].sum()[None])) * total
    found = torch.cat((seen[kept], seen[~kept].sum()[None])).double()
    usual = expected > 0
    statistic = float(((found - expected)[usual] ** 2 / expected[usual]).sum())
    freedom = max(int(usual.sum()) - 1, 1)
    return {
        "chi_square": statistic,
        "degrees_of_freedom": freedom,
        "samples": total,
        "outside_the_support": int(seen[law == 0].sum()),
        "holds": statistic < freedom + 5 * (2 * freedom) ** 0.5,
    }


def compared(visit: Visit, operators: Operators) -> dict[str, Any]:
    """Chains over the same laws and seeds on this device and on a CPU: how many lanes got other tokens."""
    vocab, depth, device, reference = visit.sizes.small_vocab, 5, visit.device, ops.load("cpu")
    lanes = max(visit.sizes.draws // 20, LANES)
    generator = torch.Generator().manual_seed(9)
    p, q = (_simplex(lanes, rows, vocab, generator) for rows in (depth + 1, depth))
    drafts = q[..., :-1].reshape(-1, vocab).multinomial(1, generator=generator).view(lanes, depth)
    seeds = torch.randint(0, 1 << 62, (lanes,), generator=generator)
    offsets = STRIDES[Domain.VERIFY] * torch.arange(lanes)
    point = torch.zeros(lanes, depth, dtype=torch.bool)
    there = operators.chain_verify(
        p.to(device), DraftLaw(q.to(device), point.to(device)), drafts.to(device), seeds.to(device), offsets.to(device)
    )[0].cpu()
    here = reference.chain_verify(p, DraftLaw(q, point), drafts, seeds, offsets)[0]
    rows, policy = law_rows(LANES, 3, vocab, "cpu"), policy_table(LANES + 1, vocab, "cpu", top_k=8, top_p=0.9)
    logits = 2 * torch.randn(LANES, 3, vocab, generator=generator)
    laws = [torch.zeros(LANES, 3, vocab + 1) for _ in range(2)]
    reference.target_law(logits, rows, policy, out=laws[0])
    out = laws[1].to(device)
    moved_rows = LawRows(**{name: tensor.to(device) for name, tensor in vars(rows).items()})
    moved_policy = PolicyTable(**{name: tensor.to(device) for name, tensor in vars(policy).items()})
    operators.target_law(logits.to(device), moved_rows, moved_policy, out=out)
    return {
        "chains": lanes,
        "chains_that_differ": int((there != here).any(1).sum()),
        "most_law_difference": float((out.cpu() - laws[0]).abs().max()),
    }


def _draw(operators: Operators, law: Tensor, seeds: Tensor, events: Tensor, step: int) -> Tensor:
    """One draft of every lane [B, 1] from its law [B, 1, V + 1]."""
    nothing = seeds[:, None][:, :0]
    starts = offset(Domain.PROPOSAL, events * 7 + step)
    return operators.chain_verify(law, DraftLaw(None, nothing.bool()), nothing, seeds, starts)[0]


def _simplex(lanes: int, rows: int, vocab: int, generator: torch.Generator) -> Tensor:
    """Laws [B, rows, V + 1] with the marker's column empty."""
    laws = torch.randn(lanes, rows, vocab, generator=generator).softmax(-1)
    return torch.cat((laws, torch.zeros(lanes, rows, 1)), -1)
