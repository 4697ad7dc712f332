"""Chain verification on a CPU: one gather for all accept tests, V-wide work at one position per lane.

Contract: the card in `chain.py`. Every lane is computed alone, so its result does not depend on lane or batch.
"""

import numpy as np
import torch
from torch import Tensor

from flare.ops.sampling.chain import DraftLaw
from flare.ops.sampling.philox import draws


def chain_verify(p: Tensor, law: DraftLaw, drafts: Tensor, seed: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted drafts and the token that follows, [B, D + 1] int64 padded with -1; accepted [B] int64; see the card.

    Raises:
        ValueError: a draft is neither a point mass nor the marker, and the law has no q.
    """
    p_BWV, drafts_BD = p.numpy(), drafts.numpy()
    lanes, depth = drafts_BD.shape
    draws_BN = draws(seed.numpy()[:, None], offset.numpy()[:, None] + np.arange(depth + 2))
    accepted = _accepted(p_BWV, _q_of_drafts(law, drafts_BD, p_BWV.shape[-1] - 1), drafts_BD, draws_BN)

    tokens = np.full((lanes, depth + 1), -1, np.int64)
    tokens[:, :depth] = np.where(np.arange(depth) < accepted[:, None], drafts_BD, -1)
    for b, taken in enumerate(accepted.tolist()):
        final = float(draws_BN[b, depth + 1 if taken < depth else depth])
        drawn = _inverse_cdf(_residual(p_BWV[b, taken], law, drafts_BD, (b, taken)), final)
        tokens[b, taken] = drawn if drawn >= 0 else _certain(p_BWV[b, taken], drafts_BD[b, taken:])
    return torch.from_numpy(tokens), torch.from_numpy(accepted)


def _q_of_drafts(law: DraftLaw, drafts_BD: np.ndarray, marker: int) -> np.ndarray:
    """q of each draft [B, D]: 1 where it is a point mass, 0 where it is the marker."""
    point_BD, marked_BD = law.point.numpy(), drafts_BD == marker
    if law.q is not None:
        learned = np.take_along_axis(law.q.numpy(), drafts_BD[..., None], -1)[..., 0]
    elif (point_BD | marked_BD).all():
        learned = np.zeros(drafts_BD.shape, np.float32)
    else:
        raise ValueError("a draft is neither a point mass nor the marker, and there is no q")
    return np.where(marked_BD, 0, np.where(point_BD, 1, learned)).astype(learned.dtype)


def _accepted(p_BWV: np.ndarray, q_BD: np.ndarray, drafts_BD: np.ndarray, draws_BN: np.ndarray) -> np.ndarray:
    """Length of the accepted prefix [B] int64; the product is rounded to the dtype of p, as the kernel does."""
    depth = drafts_BD.shape[1]
    p_BD = np.take_along_axis(p_BWV[:, :depth], drafts_BD[..., None], -1)[..., 0]
    passed = draws_BN[:, :depth].astype(p_BWV.dtype) * q_BD < p_BD
    return np.logical_and.accumulate(passed, 1).sum(1, dtype=np.int64)


def _residual(p_V: np.ndarray, law: DraftLaw, drafts_BD: np.ndarray, row: tuple[int, int]) -> np.ndarray:
    """What the token after the accepted prefix is drawn from, marker column dropped; may be negative, never scaled."""
    b, i = row
    marker = p_V.size - 1
    if i == drafts_BD.shape[1] or drafts_BD[b, i] == marker:
        return p_V[:marker]
    if law.point.numpy()[b, i]:
        weights = p_V[:marker].copy()
        weights[drafts_BD[b, i]] -= 1
        return weights
    assert law.q is not None
    return p_V[:marker] - law.q.numpy()[b, i, :marker]


def _inverse_cdf(weights: np.ndarray, u: float) -> int:
    """First id whose inclusive prefix sum of positive weights exceeds u times their sum, else the last one, else -1."""
    ids = np.flatnonzero(weights > 0)
    if not ids.size:
        return -1
    prefix = weights[ids].cumsum(dtype=np.float64)
    return int(ids[min(int(prefix.searchsorted(u * prefix[-1], "right")), ids.size - 1)])


def _certain(p_V: np.ndarray, drafts_D: np.ndarray) -> int:
    """The token where no mass is left: the draft, whose acceptance is the exact limit, or argmax p without one."""
    if drafts_D.size and drafts_D[0] < p_V.size - 1:
        return int(drafts_D[0])
    return int(p_V[:-1].argmax())
