"""Both chain verifiers of CUDA side by side, and what each way through the law costs, at large and small vocabularies.

Shapes: B lanes, W = D + 1 rows, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flare.bench.gpu.laws import KERNELS_SHOWN, law_rows, policy_table
from flare.bench.gpu.visit import Visit
from flare.device.stopwatch import median_us
from flare.ops.sampling import DraftLaw, PolicyTable
from flare.ops.sampling.cuda import chain_verify_flashinfer
from flare.ops.sampling.cuda_chain import chain_verify
from flare.ops.sampling.cuda_law import target_law

SHAPES = ((4, 6, 151_936), (1, 1, 151_936), (4, 1, 49_152), (1, 1, 49_152))
VERIFIERS = {"triton": chain_verify, "flashinfer": chain_verify_flashinfer}


def sampling_times(visit: Visit) -> dict[str, Any]:
    """Microseconds of a captured law and of captured chains, and the lanes in which the two verifiers disagree."""
    if visit.dry:
        return {"skipped": "FlashInfer runs on a CUDA device only"}
    return {"x".join(map(str, shape)): _times(visit, *shape) for shape in SHAPES}


def law_policies(lanes: int, vocab: int, device: str) -> dict[str, PolicyTable]:
    """One table for each way a row can take."""
    narrow = policy_table(lanes + 1, vocab, device, top_k=20, top_p=0.95)
    open_k = replace(narrow, top_k=torch.zeros_like(narrow.top_k))
    open_p = replace(narrow, top_p=torch.ones_like(narrow.top_p))
    softmax = replace(open_k, top_p=open_p.top_p)
    return {
        "top_k_20_top_p_095": narrow,
        "penalties": replace(narrow, plain=torch.zeros_like(narrow.plain)),
        "temperature_0": replace(narrow, temperature=torch.zeros_like(narrow.temperature)),
        "top_p_095": open_k,
        "softmax": softmax,
        "top_k_500": replace(narrow, top_k=torch.full_like(narrow.top_k, 500)),
        "top_k_500_without_top_p": replace(open_p, top_k=torch.full_like(narrow.top_k, 500)),
        "min_p_005": replace(softmax, min_p=torch.full_like(narrow.min_p, 0.05)),
    }


def _times(visit: Visit, lanes: int, width: int, vocab: int) -> dict[str, Any]:
    device, watch, replays = visit.device, visit.watch, visit.sizes.replays
    rows, logits = law_rows(lanes, width, vocab, device), 3 * torch.randn(lanes, width, vocab, device=device)
    p, q = (torch.zeros(lanes, width, vocab + 1, device=device) for _ in range(2))
    policies = law_policies(lanes, vocab, device)
    found: dict[str, Any] = {"law_us": {}, "law_kernels": {}}
    for name, policy in policies.items():

        def one_law(policy: PolicyTable = policy) -> None:
            target_law(logits, rows, policy, out=p)

        found["law_us"][name] = median_us(watch, one_law, replays=replays)
        found["law_kernels"][name] = watch.kernels(watch.record(one_law))[:KERNELS_SHOWN]
    narrow = policies["top_k_20_top_p_095"]
    target_law(logits, rows, narrow, out=p)
    target_law(logits + torch.randn_like(logits), rows, narrow, out=q)
    drafts = q[:, :-1].argmax(-1)
    laws = {"copies": DraftLaw(None, torch.ones_like(drafts, dtype=torch.bool))}
    if width > 1:
        laws["learned"] = DraftLaw(q[:, :-1], torch.zeros_like(drafts, dtype=torch.bool))
    seeds = torch.arange(lanes, device=device)

    def verified(name: str, law: DraftLaw, event: int) -> tuple[Tensor, Tensor]:
        return VERIFIERS[name](p, law, drafts, seeds, seeds * 0 + 16 * event)

    for kind, law in laws.items():
        found[f"chain_over_{kind}_us"] = {
            name: median_us(watch, lambda name=name, law=law: verified(name, law, 0), replays=replays)
            for name in VERIFIERS
        }
        pairs = [[verified(name, law, event)[0] for name in VERIFIERS] for event in range(200)]
        found[f"lanes_that_differ_over_{kind}"] = sum(int((a != b).any(1).sum()) for a, b in pairs)

    def together() -> None:
        target_law(logits, rows, narrow, out=p)
        verified("triton", laws["copies"], 0)

    found["law_and_chain_us"] = median_us(watch, together, replays=replays)
    found["kernels"] = watch.kernels(watch.record(together))[:KERNELS_SHOWN]
    return found
