"""Context copies against a backward search of the request's own tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flare.runtime.history import ContextIndex


def searched(tokens: list[int], limit: int) -> list[int]:
    for length in (8, 4):
        for begin in range(len(tokens) - length - 1, -1, -1):
            if tokens[begin : begin + length] == tokens[-length:]:
                return tokens[begin + length : begin + length + limit]
    return []


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12),
    st.integers(1, 14),
)
@settings(max_examples=300, deadline=None)
def test_continuations_equal_a_backward_search(prompt, rounds, limit):
    context, tokens = ContextIndex(prompt), list(prompt)
    assert context.continuation(limit) == searched(tokens, limit)
    for emitted in rounds:
        context.extend(emitted)
        tokens += emitted
        assert context.continuation(limit) == searched(tokens, limit)


def test_a_prompt_is_content_of_its_own_request():
    context = ContextIndex([1, 2, 3, 4, 5, 6, 7])
    context.extend([1, 2, 3, 4])
    assert context.continuation() == [5, 6, 7, 1, 2, 3, 4]
    assert ContextIndex([0]).continuation() == []
