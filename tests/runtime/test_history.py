"""The shared ring against an obvious oracle: every occurrence searched by hand in what the ring still holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.runtime.history import History


class SlowHistory:
    """All tokens ever written, searched from scratch; the last `capacity` of them count as held."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.written: list[tuple[int, str, int]] = []  # response, salt, token

    def continuation(self, query: list[int], limit: int, salt: str) -> list[int]:
        oldest = max(0, len(self.written) - self.capacity)
        held: dict[int, list[tuple[int, int]]] = {}
        for position, (response, owner, token) in enumerate(self.written):
            if position >= oldest and owner == salt:
                held.setdefault(response, []).append((position, token))
        for length in (8, 4):
            matches = []
            for run in held.values():
                tokens = [token for _, token in run]
                for begin in range(len(run) - length):
                    if len(query) >= length and tokens[begin : begin + length] == query[-length:]:
                        matches.append((run[begin][0], tokens[begin + length : begin + length + limit]))
            if matches:
                return max(matches)[1]
        return []


STEP = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=9))


@given(st.integers(1, 60), st.lists(STEP, max_size=30), st.lists(st.integers(0, 2), max_size=10), st.integers(0, 14))
@settings(max_examples=300, deadline=None)
def test_continuations_equal_a_search_of_what_the_ring_holds(capacity, steps, query, limit):
    ring, oracle = History(capacity), SlowHistory(capacity)
    salts = ["", "", "a", "a"]
    responses = [ring.open(salt) for salt in salts]
    outputs: list[list[int]] = [[] for _ in salts]
    for number, tokens in steps:
        ring.extend(responses[number], tokens)
        oracle.written += [(number, salts[number], token) for token in tokens]
        outputs[number] += tokens
        for salt in ("", "a", "b"):
            assert ring.continuation(query, limit, salt) == oracle.continuation(query, limit, salt)
            assert ring.continuation(outputs[number], limit, salt) == oracle.continuation(outputs[number], limit, salt)
        assert len(ring) == min(len(oracle.written), capacity)
        assert ring.indexed_runs <= 2 * len(ring)


def test_a_prompt_holding_the_answer_copies_nothing_before_it_was_generated_once():
    ring = History()
    answer = list(range(100, 120))
    prompt = [*answer, 1, 2, 3, *answer[:8]]
    assert ring.continuation(prompt) == []
    response = ring.open()
    ring.extend(response, answer)
    assert ring.continuation(prompt) == answer[8:20]


def test_interleaved_responses_never_run_into_each_other():
    ring = History()
    first, second = ring.open(), ring.open()
    for step in range(12):
        ring.extend(first, [step])
        ring.extend(second, [100 + step])
    assert ring.continuation([0, 1, 2, 3]) == list(range(4, 12))
    assert ring.continuation([100, 101, 102, 103]) == list(range(104, 112))
    assert ring.continuation([10, 11, 100, 101]) == []


def test_a_response_ends_where_the_next_begins():
    ring = History()
    first = ring.open()
    ring.extend(first, [1, 2, 3, 4, 5])
    ring.close(first)
    ring.extend(ring.open(), [6, 7, 8, 9])
    assert ring.continuation([1, 2, 3, 4]) == [5]
    assert ring.continuation([3, 4, 5, 6]) == []


def test_eight_tokens_win_over_a_newer_match_of_four():
    ring = History()
    ring.extend(ring.open(), [1, 2, 3, 4, 5, 6, 7, 8, 20])
    ring.extend(ring.open(), [5, 6, 7, 8, 30])
    assert ring.continuation([1, 2, 3, 4, 5, 6, 7, 8]) == [20]
    assert ring.continuation([0, 2, 3, 4, 5, 6, 7, 8]) == [30]


def test_a_match_without_a_next_token_yields_to_an_older_one_with_one():
    ring = History()
    ring.extend(ring.open(), [1, 2, 3, 4, 5])
    ring.extend(ring.open(), [1, 2, 3, 4])
    assert ring.continuation([1, 2, 3, 4]) == [5]


def test_earlier_output_of_the_asking_request_is_content():
    ring = History()
    response = ring.open()
    output = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    ring.extend(response, output)
    assert ring.continuation(output) == [5, 6, 1, 2, 3, 4]


def test_overwritten_tokens_leave_results_and_index():
    ring = History(6)
    ring.extend(ring.open(), [1, 2, 3, 4, 5])
    other = ring.open()
    ring.extend(other, [9])
    assert ring.continuation([1, 2, 3, 4]) == [5]
    ring.extend(other, [9])
    assert ring.continuation([1, 2, 3, 4]) == []
    assert ring.indexed_runs == 0


def test_salts_share_the_ring_and_no_copy():
    ring = History()
    ring.extend(ring.open("tenant"), [1, 2, 3, 4, 5])
    assert ring.continuation([1, 2, 3, 4]) == []
    assert ring.continuation([1, 2, 3, 4], salt="other") == []
    assert ring.continuation([1, 2, 3, 4], salt="tenant") == [5]


def test_a_closed_response_takes_no_more_tokens():
    ring = History()
    response = ring.open()
    ring.close(response)
    with pytest.raises(ValueError, match="closed"):
        ring.extend(response, [1])


def test_a_response_whose_last_token_was_overwritten_links_to_nobody():
    ring = History(6)
    slow, fast = ring.open(), ring.open()
    ring.extend(slow, [9])
    ring.extend(fast, [1, 2, 3, 4, 5, 6])
    ring.extend(slow, [8])
    assert ring.continuation([2, 3, 4, 5]) == [6]


def test_the_match_that_begins_last_wins_even_if_an_older_one_goes_on_later():
    ring = History()
    older, newer = ring.open(), ring.open()
    ring.extend(older, [1, 2, 3, 4])
    ring.extend(newer, [1, 2, 3, 4, 6])
    ring.extend(older, [5])
    assert ring.continuation([1, 2, 3, 4]) == [6]
