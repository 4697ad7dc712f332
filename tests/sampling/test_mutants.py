"""Broken verifiers and broken laws: each must fail a check that the real operators pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flare.ops.sampling.chain_cpu import chain_verify
from flare.ops.sampling.law_cpu import target_law
from tests.golden.philox import philox_reference
from tests.sampling.chain_checks import (
    Scenario,
    check_chain_equals_kernel,
    check_chain_law,
    check_rounds_are_independent,
)
from tests.sampling.law_checks import check_law, check_rows_equal_one_token_laws

FULL, SHORT = Scenario(("learned", "learned"), 2), Scenario(("learned",), 3)


def chain_with(fault: str | None):
    """A second verifier, vectorised over lanes, with one fault built in; None is the healthy one."""

    def verify(p, law, drafts, seed, offset):
        p, drafts, point = p.numpy().astype(np.float64), drafts.numpy(), law.point.numpy()
        lanes, depth, width = *drafts.shape, p.shape[-1]
        q = np.zeros((lanes, depth, width)) if law.q is None else law.q.numpy().astype(np.float64)
        q = np.where(point[..., None], np.eye(width)[drafts], q)
        q[drafts == width - 1] = 0
        if fault == "q rows swapped":
            q = q[:, ::-1]
        u = philox_reference.uniform(
            seed.numpy().astype(np.uint64)[:, None],
            0,
            (offset.numpy()[:, None] + np.arange(depth + 2)).astype(np.uint64),
        )
        p_d, q_d = (np.take_along_axis(x[:, :depth], drafts[..., None], -1)[..., 0] for x in (p, q))
        passed = u[:, :depth] * q_d < p_d
        if fault == "accepts all":
            passed = drafts != width - 1
        if fault == "never accepts":
            passed[:] = False
        if fault == "marker accepted":
            passed = u[:, :depth] * q_d <= p_d
        accepted = np.logical_and.accumulate(passed, 1).sum(1) if depth else np.zeros(lanes, np.int64)
        lane = np.arange(lanes)
        dense = np.concatenate([q, np.zeros((lanes, 1, width))], 1)
        weights = np.maximum(p[lane, accepted] - dense[lane, accepted], 0)
        if fault == "p instead of residual":
            weights = p[lane, accepted].copy()
        if fault == "bonus from q" and depth:
            weights = np.where((accepted == depth)[:, None], dense[:, depth - 1], weights)
        final = u[lane, np.where(accepted == depth, depth, depth + 1)]
        scale = 1.0 if fault == "residual not renormalised" else weights.sum(-1)
        prefix = weights.cumsum(-1)
        hit = (prefix > (final * scale)[:, None]) & (weights > 0)
        last = width - 1 - (weights > 0)[:, ::-1].argmax(-1)
        tokens = np.full((lanes, depth + 1), -1)
        tokens[:, :depth] = np.where(np.arange(depth) < accepted[:, None], drafts, -1)
        tokens[lane, accepted] = np.where(hit.any(-1), hit.argmax(-1), last)
        return torch.from_numpy(tokens), torch.from_numpy(accepted)

    return verify


def draws_reused(p, law, drafts, seed, offset):
    return chain_verify(p, law, drafts, seed, torch.zeros_like(offset))


def proposal_draws_reused(p, law, drafts, seed, offset):
    return chain_verify(p, law, drafts, seed, torch.full_like(offset, 1 << 60))


def check_chain(verify) -> None:
    for scenario in (FULL, SHORT, Scenario(("learned", "copy"), 2)):
        check_chain_law(verify, scenario)


def test_the_second_verifier_is_sound_without_a_fault():
    check_chain(chain_with(None))
    check_rounds_are_independent(chain_with(None), FULL)
    check_chain_equals_kernel(chain_with(None))


@pytest.mark.parametrize(
    "fault",
    [
        "accepts all",
        "never accepts",
        "residual not renormalised",
        "p instead of residual",
        "q rows swapped",
        "bonus from q",
        "marker accepted",
    ],
)
def test_broken_verifiers_fail_the_law_and_the_kernel_comparison(fault: str):
    with pytest.raises(AssertionError):
        check_chain(chain_with(fault))
    with pytest.raises(AssertionError):
        check_chain_equals_kernel(chain_with(fault))


def test_draws_reused_across_rounds_fail_independence():
    check_chain_law(draws_reused, FULL)  # one round alone cannot tell
    with pytest.raises(AssertionError, match="chi-square"):
        check_rounds_are_independent(draws_reused, FULL)


def test_verification_on_the_proposal_domain_fails_the_law():
    with pytest.raises(AssertionError, match=r"chi-square|impossible"):
        check_chain_law(proposal_draws_reused, FULL)


def drafts_uncounted(logits, rows, policy, *, out):
    tokens = rows.tokens.clone()
    tokens[:, 1:] = logits.shape[-1]
    return target_law(logits, replace(rows, tokens=tokens), policy, out=out)


def own_draft_uncounted(logits, rows, policy, *, out):
    """Counts lag by one row: row w sees the drafts 1..w-1."""
    tokens = rows.tokens.clone()
    tokens[:, 1:] = rows.tokens[:, :-1]
    tokens[:, 1:2] = logits.shape[-1]
    return target_law(logits, replace(rows, tokens=tokens), policy, out=out)


def mask_as_product(logits, rows, policy, *, out):
    vocab = logits.shape[-1]
    ids = torch.arange(vocab)
    allowed = (rows.masks[..., ids // 32] >> (ids % 32)) & 1
    product = torch.where(rows.masked[:, None, None], logits * allowed, logits)
    return target_law(product, replace(rows, masked=torch.zeros_like(rows.masked)), policy, out=out)


def min_tokens_late(logits, rows, policy, *, out):
    return target_law(logits, rows, replace(policy, min_tokens=policy.min_tokens + 1), out=out)


def min_tokens_early(logits, rows, policy, *, out):
    return target_law(logits, rows, replace(policy, min_tokens=policy.min_tokens - 1), out=out)


def min_tokens_rows_ignored(logits, rows, policy, *, out):
    """Every row is judged as if no draft stood before it."""
    width, parts = logits.shape[1], []
    for w in range(width):
        moved = replace(policy, min_tokens=policy.min_tokens + w)
        parts.append(target_law(logits, rows, moved, out=torch.empty_like(out))[:, w])
    return out.copy_(torch.stack(parts, 1))


def top_p_before_top_k(logits, rows, policy, *, out):
    target_law(logits, rows, replace(policy, top_k=torch.zeros_like(policy.top_k)), out=out)
    for b, slot in enumerate(rows.slots.tolist()):
        k = int(policy.top_k[slot])
        if 0 < k < logits.shape[-1]:
            kth = out[b].sort(-1, descending=True).values[:, k - 1 : k]
            kept = torch.where(out[b] >= kth, out[b], 0.0)
            out[b] = kept / kept.sum(-1, keepdim=True)
    return out


def prompt_in_presence(logits, rows, policy, *, out):
    """Presence and frequency that also count the prompt."""
    counts = policy.generated_counts + policy.prompt_counts
    return target_law(logits, rows, replace(policy, generated_counts=counts), out=out)


@pytest.mark.parametrize(
    "broken",
    [
        drafts_uncounted,
        own_draft_uncounted,
        mask_as_product,
        min_tokens_late,
        min_tokens_early,
        min_tokens_rows_ignored,
        top_p_before_top_k,
        prompt_in_presence,
    ],
)
def test_broken_laws_fail_the_formula(broken):
    with pytest.raises(AssertionError):
        check_law(broken)


@pytest.mark.parametrize("broken", [drafts_uncounted, own_draft_uncounted, min_tokens_rows_ignored])
def test_laws_blind_to_drafts_differ_from_one_token_decoding(broken):
    with pytest.raises(AssertionError, match="differs"):
        check_rows_equal_one_token_laws(broken)
