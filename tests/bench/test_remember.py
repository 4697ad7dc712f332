"""Remembered responses: the ring of a fresh engine offers them as it would have offered its own."""

from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import saying, scripted_engine

ANSWER = "a quick brown fox jumps over one lazy dog, then sleeps"  # no four bytes stand twice
PROMPT = "say it: "


def answer(remembered: str | None, **serving) -> Completion:
    engine = scripted_engine(saying(ANSWER, len(PROMPT)), **{"context_drafts": False, "fixed_width": 8, **serving})
    with engine:
        if remembered is not None:
            engine.remember(remembered.encode())
        done = engine.generate(PROMPT, Sampling(max_tokens=80, temperature=0.0))
    assert isinstance(done, Completion)
    assert done.text == ANSWER
    return done


def test_a_remembered_response_is_copied_and_named_history():
    done = answer(ANSWER, history_drafts=True)
    assert set(done.speculation.by_source) == {"history"}
    assert done.speculation.accepted > len(ANSWER) / 2


def test_nothing_remembered_offers_nothing():
    assert answer(None, history_drafts=True).speculation.offered == 0


def test_without_history_drafts_remembering_changes_nothing():
    assert answer(ANSWER, history_drafts=False).speculation.offered == 0


def test_responses_do_not_run_into_each_other():
    engine = scripted_engine(saying(ANSWER, len(PROMPT)), context_drafts=False, fixed_width=8, history_drafts=True)
    half = len(ANSWER) // 2
    with engine:
        engine.remember(ANSWER[:half].encode())
        engine.remember(ANSWER[half:].encode())
        done = engine.generate(PROMPT, Sampling(max_tokens=80, temperature=0.0))
    assert isinstance(done, Completion)
    begin = 0
    for row in done.rounds:  # the first token came with the prefill
        offered_until = begin + 1 + row.offered
        assert not (begin + 1 < half < offered_until)
        begin += row.emitted
