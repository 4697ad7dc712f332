"""Philox draws: published answers, and the layout of FlashInfer's samplers."""

import json
from pathlib import Path

import numpy as np
import torch

from flare.ops.sampling.philox import philox4x32_10, uniform
from tests.golden.philox import philox_reference

KNOWN = json.loads((Path(__file__).parents[1] / "golden/philox/known_answers.json").read_text())


def words(texts: list[str]) -> np.ndarray:
    return np.array([[int(text, 16)] for text in texts], np.uint64)


def test_blocks_equal_the_published_answers():
    for block in KNOWN["blocks"]:
        got = philox4x32_10(words(block["counter"]), words(block["key"]))
        assert (got == words(block["output"])).all()


def test_the_oracle_gives_the_published_answers():
    for block in KNOWN["blocks"]:
        got = philox_reference.philox4x32_10(words(block["counter"]), words(block["key"]))
        assert (np.stack(got) == words(block["output"])).all()


def test_draws_equal_the_oracle_for_any_bits_of_seed_and_offset():
    rng = np.random.default_rng(1)
    seed, offset = (rng.integers(-(2**63), 2**63 - 1, 50_000) for _ in range(2))
    seed[:4], offset[:4] = (0, -1, 2**63 - 1, -(2**63)), (0, 1, -1, 2**62)
    want = philox_reference.uniform(seed.astype(np.uint64), 0, offset.astype(np.uint64))
    got = uniform(torch.from_numpy(seed), torch.from_numpy(offset))
    assert got.dtype == torch.float32
    assert (got.numpy() == want).all()


def test_seed_and_offset_broadcast_and_an_offset_is_one_draw():
    seed, offset = torch.tensor([[5], [6]]), torch.arange(9) + 3
    got = uniform(seed, offset)
    assert got.shape == (2, 9)
    assert torch.equal(got[1, 4:6], uniform(torch.tensor([6, 6]), torch.tensor([7, 8])))
    assert uniform(seed[0, 0], offset[0]).shape == ()


def test_uniforms_are_never_zero_and_can_be_one():
    known = KNOWN["unit_draw"]
    assert uniform(torch.tensor(known["seed"]), torch.tensor(known["offset"])) == 1.0
    assert (uniform(torch.arange(10_000), torch.tensor(0)) > 0).all()
