"""The sampling operators of CUDA over CPU tensors: operands go to where Triton kernels run, results come back."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from flare.ops.sampling import DraftLaw, LawRows, PolicyTable, cuda_chain, cuda_law

COMPILED = torch.cuda.is_available()  # else the kernels run in Triton's interpreter
DEVICE = "cuda" if COMPILED else "cpu"


def moved(data: Any) -> Any:
    """A dataclass of tensors on the kernels' device."""
    held = {f.name: getattr(data, f.name) for f in fields(data)}
    return replace(data, **{name: x if x is None else x.to(DEVICE) for name, x in held.items()})


def target_law(logits: Tensor, rows: LawRows, policy: PolicyTable, *, out: Tensor) -> Tensor:
    """`cuda_law.target_law` in float32, into a CPU tensor of any dtype."""
    law = out.float().to(DEVICE)
    assert cuda_law.target_law(logits.float().to(DEVICE), moved(rows), moved(policy), out=law) is law
    return out.copy_(law)


def chain_verify(p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """`cuda_chain.chain_verify`."""
    tokens, accepted = cuda_chain.chain_verify(
        p.to(DEVICE), moved(law), drafts.to(DEVICE), seed.to(DEVICE), offset.to(DEVICE)
    )
    return tokens.cpu(), accepted.cpu()
