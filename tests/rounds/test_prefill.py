"""Prompt chunks: any cut leaves what one chunk leaves, and what token-by-token consumption leaves."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.contract.frames import RECORD_FIELDS, Field
from tests.rounds.harness import GREEDY, bench, emitted, random_weights
from tests.rounds.test_speculative import assert_same_state

WEIGHTS = random_weights(seed=3)
PROMPT = torch.randint(0, 61, (150,), generator=torch.Generator().manual_seed(5)).tolist()


def prefilled(cuts: list[int], length: int):
    """A core whose request consumed the prompt in chunks ending at `cuts` and at its end."""
    core = bench(WEIGHTS)
    core.admit(1, PROMPT[:length], GREEDY)
    bounds = [0, *cuts, length]
    for start, end in pairwise(bounds):
        record = core.chunk(1, PROMPT[start:end], end - start + (end - start) % 7, sample=end == length)
    return core, int(record[RECORD_FIELDS])


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_cut_equals_one_chunk(data):
    length = data.draw(st.integers(2, len(PROMPT)))
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=5)))
    whole, first = prefilled([], length)
    cut, token = prefilled(cuts, length)
    assert token == first
    assert_same_state(cut.committed(1), whole.committed(1))


def test_token_by_token_equals_one_chunk():
    whole, first = prefilled([], 40)
    single, token = prefilled(list(range(1, 40)), 40)
    assert token == first
    assert_same_state(single.committed(1), whole.committed(1))


def test_a_resumed_request_continues_as_if_it_had_never_left():
    core, first = prefilled([], 30)
    tokens = [first]
    for _ in range(5):
        tokens += emitted(core.decode([1])[1])
    parked = bench(WEIGHTS)
    parked.admit(1, PROMPT[:30], GREEDY, generated=tokens)
    consumed = [*PROMPT[:30], *tokens[:-1]]
    record = parked.chunk(1, consumed[:20], 64, sample=False)
    assert record[Field.EMITTED] == 0
    parked.chunk(1, consumed[20:], 64, sample=False)
    assert_same_state(parked.committed(1), core.committed(1))
    assert emitted(parked.decode([1])[1]) == emitted(core.decode([1])[1])
