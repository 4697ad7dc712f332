"""Prompt log-probabilities: each row's is the target's own for the token that follows it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from flare.contract.frames import RECORD_FIELDS, Field
from flare.rounds import prefill
from tests.rounds.harness import GREEDY, Bench, bench, emitted, random_weights
from tests.rounds.test_speculative import assert_same_state

WEIGHTS = random_weights(seed=31)
PROMPT = torch.randint(0, 61, (45,), generator=torch.Generator().manual_seed(8)).tolist()
CUTS = [0, 16, 29, 45]


def scored(core: Bench, capacity: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and ids of the prompt's tokens from the second on, and the last chunk's record."""
    core.admit(1, PROMPT, GREEDY)
    values, ids, record = [], [], np.zeros(0)
    for start, end in pairwise(CUTS):
        core.completion.prompt_logprobs[:] = np.nan
        following = PROMPT[end] if end < len(PROMPT) else None
        record = core.scored_chunk(1, PROMPT[start:end], following, capacity)
        rows = end - start - (following is None)
        values.append(core.completion.prompt_logprobs[:rows].copy())
        ids.append(core.completion.prompt_logprob_ids[:rows].copy())
        assert np.isnan(core.completion.prompt_logprobs[end - start :]).all()
    return np.concatenate(values), np.concatenate(ids), record


def oracle() -> torch.Tensor:
    """Log-laws after every token of the prompt [45, V], from rounds of one token."""
    core, laws = bench(WEIGHTS), []
    core.admit(1, PROMPT, GREEDY)
    for token in PROMPT:
        core.chunk(1, [token], 1, sample=True)
        laws.append(core.model.logits[0].log_softmax(-1).clone())
        core.model.requests.generated[1] = 0
    return torch.stack(laws)


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_every_token_of_a_prompt_gets_its_log_probability_in_blocks_of_any_size(rows):
    core, wanted = bench(WEIGHTS), oracle()
    core.model = replace(core.model, logits=core.model.logits[:rows])
    values, ids, _ = scored(core)
    assert ids.shape == (44, 6)
    assert ids[:, 0].tolist() == PROMPT[1:]
    own = wanted[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()
    assert np.allclose(values[:, 0], own, atol=1e-6, rtol=0)
    likeliest = wanted[:-1].topk(5)
    assert np.array_equal(ids[:, 1:], likeliest.indices.numpy())
    assert np.allclose(values[:, 1:], likeliest.values.numpy(), atol=1e-6, rtol=0)


def test_a_scored_prompt_leaves_what_a_plain_one_leaves_and_samples_only_at_its_end():
    core, plain = bench(WEIGHTS), bench(WEIGHTS)
    record = scored(core)[2]
    plain.admit(1, PROMPT, GREEDY)
    plain.chunk(1, PROMPT[:16], 16, sample=False)
    assert core.model.requests.events[1].sum() == 1
    plain.chunk(1, PROMPT[16:29], 16, sample=False)
    wanted = plain.chunk(1, PROMPT[29:], 16, sample=True)
    assert emitted(record) == emitted(wanted) != []
    assert record[RECORD_FIELDS:].tolist() == wanted[RECORD_FIELDS:].tolist()
    assert_same_state(core.committed(1), plain.committed(1))


def test_a_chunk_before_the_last_emits_nothing():
    core = bench(WEIGHTS)
    core.admit(1, PROMPT, GREEDY)
    record = core.scored_chunk(1, PROMPT[:16], PROMPT[16], 16)
    assert (record[Field.EMITTED], record[Field.CONSUMED]) == (0, 16)
    assert not core.model.requests.events[1].any()


def test_a_chunk_as_long_as_the_context_has_no_token_behind_it():
    core = bench(WEIGHTS)
    core.extent = replace(core.extent, context=64)
    core.frame = replace(core.frame, arguments=replace(core.frame.arguments, tokens=core.frame.arguments.tokens[:64]))
    core.admit(1, PROMPT, GREEDY)
    assert core.scored_chunk(1, [*PROMPT, *PROMPT[:19]], None, 64)[Field.CONSUMED] == 64


def test_scores_of_the_rows_own_tokens_are_noticed(monkeypatch):
    """Guards the first test: the token a row consumed instead of the one after it."""
    real = prefill._score

    def score(model, frame, chunk):
        tokens = frame.arguments.tokens.roll(1, 0)
        real(model, replace(frame, arguments=replace(frame.arguments, tokens=tokens)), chunk)

    monkeypatch.setattr(prefill, "_score", score)
    with pytest.raises(AssertionError):
        test_every_token_of_a_prompt_gets_its_log_probability_in_blocks_of_any_size(5)
