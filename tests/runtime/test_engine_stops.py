"""Where a request ends: stop strings, stop ids, end of text, budget — at every width, in text, ids and counts alike."""

import pytest

from flare.errors import RequestError
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import EOS, mixing, saying, scripted_engine

WIDTHS = range(1, 9)
LOOP = "abcdefgh" * 6
PROMPT = "abcdefghabcdefgh"  # what follows it was seen before: copies are offered from the first round


def generate(engine: Engine, prompt, **wishes) -> Completion:
    done = engine.generate(prompt, Sampling(**wishes))
    assert isinstance(done, Completion)
    check_counts(done)
    assert_free(engine)
    return done


def check_counts(done: Completion) -> None:
    """Ids, sources, usage, logprobs, rounds and counts say the same."""
    count, counts = len(done.token_ids), done.speculation
    assert count == len(done.sources) == done.usage.completion_tokens
    assert done.logprobs is None or [row.token_id for row in done.logprobs] == list(done.token_ids)
    emitted = sum(row.emitted for row in done.rounds)
    assert emitted == counts.emitted == max(0, count - 1)
    assert counts.rounds == len(done.rounds) == sum(counts.widths.values())
    assert counts.accepted == sum(source in ("history", "context", "learned") for source in done.sources)
    assert counts.offered == sum(pair.offered for pair in counts.by_depth)
    assert counts.accepted == sum(pair.accepted for pair in counts.by_source.values())
    assert all(row.offered == row.emitted for row in done.rounds if row.accepted == row.emitted)  # ended in its block
    assert all(row.accepted <= row.offered < row.width and row.accepted <= row.emitted for row in done.rounds)


def assert_free(engine: Engine) -> None:
    scheduler = engine.scheduler
    while engine.step():
        pass
    assert engine.idle and scheduler.waiting == 0
    assert (scheduler.pages.free, scheduler.slots.free) == (scheduler.pages.total, scheduler.slots.total)
    engine.check()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_exactly_max_tokens_are_generated(width, max_tokens):
    with scripted_engine(saying(LOOP, len(PROMPT)), fixed_width=width) as engine:
        done = generate(engine, PROMPT, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
    assert done.token_ids == tuple(LOOP.encode()[:max_tokens])
    assert (done.text, done.finish_reason) == (LOOP[:max_tokens], "length")
    used = 1
    for row in done.rounds:
        assert row.width in (1, width)
        assert row.offered <= max_tokens - used - 1  # whatever was queued before, no draft exceeds the budget
        used += row.emitted
    if width > 1 and max_tokens > 8:
        assert done.speculation.accepted > 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("length", range(1, 20))
def test_a_stop_string_ends_text_ids_and_counts_wherever_it_falls(width, length):
    """Every split of the stop over rounds, and stops inside accepted blocks."""
    text = LOOP[:length] + "<END>" + LOOP
    with scripted_engine(saying(text, len(PROMPT)), fixed_width=width) as engine:
        done = generate(engine, PROMPT, max_tokens=60, stop=["<END>", "never"], logprobs=0)
    assert (done.text, done.finish_reason) == (LOOP[:length], "stop")
    assert done.token_ids == tuple((LOOP[:length] + "<END>").encode())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("end", range(1, 18))
def test_a_stop_inside_an_accepted_block_leaves_nothing_after_it(width, end):
    """The answer repeats itself, so the device accepts far beyond the stop."""
    stop = LOOP[max(0, end - 3) : end]
    with scripted_engine(saying(LOOP, 16), fixed_width=width) as engine:
        done = generate(engine, PROMPT, max_tokens=40, min_tokens=end - 1, stop=stop, ignore_eos=True)
    assert done.token_ids == tuple(LOOP.encode()[:end])
    assert (done.text, done.finish_reason) == (LOOP[: max(0, end - 3)] if end > 3 else "", "stop")


@pytest.mark.parametrize("width", [1, 4, 8])
def test_the_stop_that_completes_first_in_the_text_wins(width):
    with scripted_engine(saying("one two three", 16), fixed_width=width) as engine:
        done = generate(engine, PROMPT, stop=["two three", "wo", "three"])
    assert (done.text, done.token_ids) == ("one t", tuple(b"one two"))


@pytest.mark.parametrize("width", WIDTHS)
def test_end_of_text_as_the_first_token_runs_no_round(width):
    with scripted_engine(saying("", 16), fixed_width=width) as engine:
        done = generate(engine, PROMPT)
    assert (done.text, done.token_ids, done.finish_reason, done.rounds) == ("", (EOS,), "stop", ())
    assert done.sources == ("prefill",)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("length", range(1, 14))
def test_end_of_text_and_stop_ids_end_a_request_inside_a_block(width, length):
    text = LOOP[:length]
    with scripted_engine(saying(text, 16), fixed_width=width) as engine:
        ended = generate(engine, PROMPT, max_tokens=30)
        stopped = generate(engine, PROMPT, max_tokens=30, stop_token_ids=[ord("f")], ignore_eos=True)
    assert (ended.text, ended.token_ids, ended.finish_reason) == (text, (*text.encode(), EOS), "stop")
    expected = (text + "f")[: (text + "f").index("f")]
    if "f" in text:
        assert (stopped.text, stopped.token_ids[-1], stopped.finish_reason) == (expected, ord("f"), "stop")
    else:
        assert (stopped.text, len(stopped.token_ids), stopped.finish_reason) == (text, 30, "length")


def test_min_tokens_keep_every_kind_of_stop_from_ending_a_request():
    with scripted_engine(saying("ab.cd.ef", 16, then=ord("."))) as engine:
        done = generate(engine, PROMPT, min_tokens=4, stop=".", max_tokens=12)
    assert (done.text, done.token_ids) == ("ab.cd", tuple(b"ab.cd."))


def test_a_stop_string_completed_by_the_last_token_of_the_budget_is_a_stop():
    with scripted_engine(saying("abc.", 16)) as engine:
        done = generate(engine, PROMPT, stop="c.", max_tokens=4)
    assert (done.text, done.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize("width", [1, 3, 8])
def test_streamed_characters_are_whole_and_join_to_the_text(width):
    text = "né 🐳 ist 鯨, 海🌊 — " * 3
    with scripted_engine(saying(text, 16), fixed_width=width) as engine:
        events = list(engine.stream(PROMPT, Sampling(max_tokens=200, stop="never")))
    assert "".join(event.text for event in events) == text
    assert not any("\ufffd" in event.text for event in events)
    assert all("".join(event.texts) == event.text for event in events)
    done = events[-1].completion
    assert done is not None and done.text == text
    assert [token for event in events for token in event.token_ids] == list(done.token_ids)
    assert [source for event in events for source in event.sources] == list(done.sources)
    assert all(event.finish_reason is None for event in events[:-1])


@pytest.mark.parametrize("wishes", [{"speculation": False}, {"max_draft_tokens": 0}])
def test_opting_out_offers_no_draft_of_any_source_and_says_so(wishes):
    with scripted_engine(saying(LOOP, 16), history_drafts=True) as engine:
        generate(engine, PROMPT, max_tokens=40)
        done = generate(engine, PROMPT, max_tokens=40, **wishes)
        assert engine._device.log[-1][:3] == ("speculative", 1, 1)  # and the narrow graph runs
    assert done.speculation.offered == 0 and set(done.speculation.widths) == {1}
    assert done.speculation.reason is not None and next(iter(wishes)) in done.speculation.reason


def test_max_draft_tokens_bounds_every_round():
    with scripted_engine(saying(LOOP, 16)) as engine:
        done = generate(engine, PROMPT, max_tokens=40, max_draft_tokens=2)
    assert max(row.offered for row in done.rounds) == 2 and done.speculation.accepted > 0


def test_zero_drafts_decode_ordinarily_and_say_so():
    with scripted_engine(saying(LOOP, 16), mtp_draft_tokens=0) as engine:
        done = generate(engine, PROMPT, max_tokens=10)
        assert {entry[0] for entry in engine._device.log} == {"init", "prefill", "decode"}
    assert done.speculation.reason == "serving.mtp_draft_tokens=0"


def test_copies_come_from_history_once_an_answer_was_generated_and_from_context_before():
    answer = "The quick brown fox jumps over the lazy dog. "
    with scripted_engine(saying(answer, 12), history_drafts=True, context_drafts=False) as engine:
        first = generate(engine, "Tell a joke:", max_tokens=60)
        second = generate(engine, "Tell a joke:", max_tokens=60)
    assert first.speculation.offered == 0
    assert second.speculation.by_source["history"].accepted > 20
    assert len(second.rounds) < len(first.rounds) / 2


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("history", [False, True])
def test_every_width_and_source_gives_the_same_tokens(width, history):
    with scripted_engine(mixing(), fixed_width=width, history_drafts=history) as engine:
        tokens = [generate(engine, PROMPT, max_tokens=90, logprobs=1).token_ids for _ in range(3)]
    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        plain = generate(engine, PROMPT, max_tokens=90).token_ids
    assert tokens == [plain] * 3


def test_the_adaptive_policy_gives_the_same_tokens():
    with scripted_engine(mixing(), adaptive_verification=True, exploration_share=0.05, history_drafts=True) as engine:
        adaptive = [generate(engine, PROMPT, max_tokens=200).token_ids for _ in range(3)]
    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        assert adaptive == [generate(engine, PROMPT, max_tokens=200).token_ids] * 3


def test_logprobs_have_the_alternatives_asked_for():
    with scripted_engine(saying(LOOP, 16)) as engine:
        done = generate(engine, PROMPT, max_tokens=9, logprobs=3)
        none = generate(engine, PROMPT, max_tokens=9, logprobs=0)
    assert done.logprobs is not None and all(len(row.top) == 3 for row in done.logprobs)
    assert none.logprobs is not None and all(row.top == () for row in none.logprobs)
    assert [row.logprob for row in done.logprobs] == [-float(index) for index in range(9)]


def test_an_option_this_core_lacks_leaves_the_engine_serving():
    with scripted_engine(saying(LOOP, 16)) as engine:
        with pytest.raises(RequestError, match="logprobs=20"):
            engine.generate(PROMPT, Sampling(logprobs=20))
        assert generate(engine, PROMPT, max_tokens=3).text == "abc"
