"""Philox4x32-10 draws in the order FlashInfer's samplers consume them, on the CPU.

key = the 64-bit seed; counter words 0-1 = position // 4, words 2-3 = the subsequence, here always 0; the draw is output
word position % 4. One uniform advances the position by one: `offset` counts single draws.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; FlashInfer 0.7.4 / cuRAND for the layout.
"""

import numpy as np
import torch
from torch import Tensor

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


def philox4x32_10(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """counter [4, N] and key [2, N], uint64 arrays of 32-bit words -> [4, N] output words, uint64."""
    rounds = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None]
    keys = (key + rounds * _KEY_STEPS[:, None]) & _LOW
    even, odd = counter[0::2], counter[1::2]
    for key_2N in keys:
        product = even * _MULTIPLIERS[:, None]
        # Each half feeds the other lane: the high word of product 1 meets counter word 1, that of product 0 word 3.
        even, odd = (product[::-1] >> _WORD) ^ odd ^ key_2N, product[::-1] & _LOW
    return np.stack([even, odd], 1).reshape(4, -1)


def draws(seed: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """int64 seeds and offsets of one common or broadcastable shape -> float32 uniforms in (0, 1]."""
    seed_u, position = np.broadcast_arrays(seed.astype(np.uint64), offset.astype(np.uint64))
    shape, seed_u, position = position.shape, seed_u.reshape(-1), position.reshape(-1)
    block, lane = position >> np.uint64(2), (position & np.uint64(3)).astype(np.int64)
    counter = np.zeros((4, block.size), np.uint64)
    counter[0], counter[1] = block & _LOW, block >> _WORD
    words = philox4x32_10(counter, np.stack([seed_u & _LOW, seed_u >> _WORD]))
    # The device rounds the word to float32 first, then does one fused multiply-add; both are exact in float64 here.
    word = words[lane, np.arange(block.size)].astype(np.float64).astype(np.float32)
    return (word.astype(np.float64) * 2.0**-32 + 2.0**-33).astype(np.float32).reshape(shape)


def uniform(seed: Tensor, offset: Tensor) -> Tensor:
    """Draw one float32 uniform in (0, 1] per element; exactly 1 has probability 2^-25.

    Args:
        seed: int64 [...], its bits read as unsigned.
        offset: int64 [...], broadcastable with `seed`, its bits read as unsigned; draws are numbered one by one.
    """
    return torch.from_numpy(draws(seed.numpy(), offset.numpy()))
