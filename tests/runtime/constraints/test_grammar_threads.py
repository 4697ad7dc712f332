"""Grammars asked for by many threads: each is compiled once, kept within bounds, and refused in the same words."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.errors import RequestError
from flare.runtime.constraints import Constraint, grammar, wishes
from flare.runtime.constraints.grammar import GrammarMatcher, Grammars
from flare.runtime.constraints.wishes import Wish, schema_text
from flare.runtime.sampling import Sampling
from tests.runtime.constraints.obedient import take_masks
from tests.runtime.constraints.words import END, byte_tokenizer, grammars, ids, masks, wish
from tests.runtime.scripted_core import saying, scripted_engine

TOKENIZER = byte_tokenizer().to_str()
WAIT_S = 60.0
THREADS = 6
FIRST = {"abc": "a", "[x-z]{2}": "xyz", "(no|yes)!": "ny", "q+": "q", "(0|1)*2": "012"}  # and what may come first
BROKEN = ("a(b", "(?=a)b")


class Spy:
    """Counts what is compiled; holds a compilation until its gate opens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.compiled: Counter[str] = Counter()
        self.began, self.gates = threading.Event(), dict[str, threading.Event]()
        real = Grammars._compile

        def compile(grammars: Grammars, wish: Wish) -> GrammarMatcher:
            self.compiled[wish.text] += 1
            self.began.set()
            if wish.text in self.gates:
                assert self.gates[wish.text].wait(WAIT_S)
            return real(grammars, wish)

        patch.setattr(Grammars, "_compile", compile)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def at_once(calls: list[Callable[[], None]]) -> None:
    """Each call on a thread of its own, all of them started together."""
    barrier = threading.Barrier(len(calls))

    def call(each: Callable[[], None]) -> None:
        barrier.wait(WAIT_S)
        each()

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call, each) for each in calls]:
            done.result(WAIT_S)


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(RequestError) as refused:
        ask()
    return str(refused.value)


def ask(asked: Grammars, text: str, early: bool) -> None:
    """Compile or follow; what comes back belongs to this grammar and to nobody else."""
    wanted = wish(regex=text)
    if text in BROKEN:
        sentence = refusal(lambda: asked.compile(wanted) if early else asked.matcher(wanted))
        assert sentence.startswith("sampling.regex cannot be followed: ")
    elif early:
        asked.compile(wanted)
    else:
        followed = Constraint(asked.matcher(wanted), (END,))
        assert masks(followed)[0] == ids(FIRST[text])
        followed.commit([min(ids(FIRST[text]))], ended=False)


def in_turn(asked: Grammars, wanted: list[tuple[str, bool]]) -> None:
    for text, early in wanted:
        ask(asked, text, early)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([*FIRST, *BROKEN]), st.booleans()), min_size=1, max_size=12),
        min_size=2,
        max_size=THREADS,
    )
)
@settings(max_examples=25, deadline=None)
def test_threads_that_ask_for_a_handful_of_grammars_compile_each_once(asked):
    with pytest.MonkeyPatch.context() as patch:
        spy, shared = Spy(patch), grammars()
        at_once([lambda each=each: in_turn(shared, each) for each in asked])
        assert all(count == 1 for text, count in spy.compiled.items() if text in FIRST)
        assert set(spy.compiled) == {text for each in asked for text, _ in each}
        assert {kept.text for kept in shared._kept} == set(spy.compiled) - set(BROKEN) and shared._turns == {}


def test_the_recent_grammars_are_kept_and_no_more_whoever_asks(monkeypatch):
    monkeypatch.setattr(grammar, "KEPT_GRAMMARS", 2)
    shared, most = grammars(), 0

    def hammer(offset: int) -> None:
        nonlocal most
        for step in range(40):
            ask(shared, list(FIRST)[(step * (offset + 1) + offset) % len(FIRST)], early=step % 2 == 0)
            most = max(most, len(shared._kept))

    at_once([lambda offset=offset: hammer(offset) for offset in range(THREADS)])
    assert most == 2 and shared._turns == {}
    for text in ("abc", "q+", "abc", "(no|yes)!"):
        shared.compile(wish(regex=text))
    assert [kept.text for kept in shared._kept] == ["abc", "(no|yes)!"]


def test_who_comes_while_a_grammar_is_compiled_waits_for_it_and_others_do_not(spy, pool):
    shared, gate = grammars(), threading.Event()
    shared.compile(wish(regex="q+"))
    spy.gates["abc"] = gate
    spy.began.clear()
    same = [pool.submit(shared.compile, wish(regex="abc")), pool.submit(shared.matcher, wish(regex="abc"))]
    assert spy.began.wait(WAIT_S)
    for text in ("q+", "(no|yes)!"):  # kept, and new
        pool.submit(ask, shared, text, False).result(WAIT_S)
    assert not any(done.done() for done in same)
    gate.set()
    for done in same:
        done.result(WAIT_S)
    assert spy.compiled["abc"] == 1


def test_an_attempt_that_fails_is_nobody_elses(spy, pool):
    shared, gate = grammars(), threading.Event()
    spy.gates["a(b"] = gate
    asked = [pool.submit(refusal, lambda: shared.compile(wish(regex="a(b"))) for _ in range(3)]
    assert spy.began.wait(WAIT_S)
    gate.set()
    assert {done.result(WAIT_S) for done in asked} == {"sampling.regex cannot be followed: unclosed group."}
    assert not shared._kept and not shared._turns


def test_the_vocabulary_is_loaded_once_by_whoever_comes_first(monkeypatch):
    loaded, real = [], Grammars._load
    monkeypatch.setattr(Grammars, "_load", lambda self: loaded.append(threading.current_thread()) or real(self))
    shared = grammars()
    at_once([shared.load, *(lambda text=text: ask(shared, text, early=True) for text in FIRST)])
    assert len(loaded) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a(b"},
        {"grammar": "start: nothing"},
        {"json_schema": {"type": "thing"}},
        {"json_schema": schema_text({"type": "thing"})},
        {"json_schema": False},
    ],
)
def test_compile_refuses_in_the_words_of_submit(fields):
    with engine() as asked:
        early = refusal(lambda: asked.compile(Sampling(**fields)))
        assert early == refusal(lambda: asked.submit("a", Sampling(**fields)))
        assert early.startswith(f"sampling.{next(iter(fields))} cannot be followed: ") and "\n" not in early


def engine(**sampling: object):
    """A scripted engine that answers `abc`, over a vocabulary that grammars can read."""
    built = scripted_engine(saying("abc", 1), sampling=sampling)
    built.vocabulary.tokenizer_json = TOKENIZER  # pyright: ignore[reportAttributeAccessIssue]
    return built


def test_submit_finds_what_was_compiled_and_compiles_what_was_not(spy, monkeypatch):
    take_masks(monkeypatch)
    with engine() as asked:
        asked.compile(Sampling(regex="abc"))
        assert spy.compiled == {"abc": 1}
        assert asked.generate("a", Sampling(regex="abc", n=2))[1].text == "abc"  # pyright: ignore[reportIndexIssue]
        assert spy.compiled == {"abc": 1}
        assert asked.generate("a", Sampling(regex="abc|q")).text == "abc"  # pyright: ignore[reportAttributeAccessIssue]
        assert spy.compiled == {"abc": 1, "abc|q": 1}


def test_without_a_constraint_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(Grammars, "_load", lambda self: pytest.fail("loaded"))
    with engine() as asked:
        asked.compile(Sampling(temperature=0.5))
        asked.generate("a")


def test_a_constraint_of_the_configuration_is_compiled_unless_the_request_has_its_own(spy):
    with engine(regex="abc") as asked:
        asked.compile(Sampling())
        asked.compile(Sampling(regex="q+"))
        assert spy.compiled == {"abc": 1, "q+": 1}


def test_an_engine_runs_while_other_threads_compile_for_it(monkeypatch):
    take_masks(monkeypatch)
    with engine() as asked, ThreadPoolExecutor(THREADS) as pool:
        others = [
            pool.submit(lambda text=text: [asked.compile(Sampling(regex=f"{text}{step}")) for step in range(10)])
            for text in FIRST
        ]
        for step in range(10):
            done = asked.wait(asked.submit("a", Sampling(regex=f"abc|z{step % 3}")))
            assert [each.text for each in done] == ["abc"]
        for other in others:
            other.result(WAIT_S)
        asked.check()


def test_a_schema_that_was_written_out_is_not_read_again(monkeypatch):
    written = schema_text({"type": "integer"})
    monkeypatch.setattr(wishes, "json", None)
    assert schema_text(written) is written
    assert wish(json_schema=written).text is written


def test_a_written_schema_names_the_same_grammar():
    schema = {"type": "integer", "minimum": 3}
    assert wish(json_schema=schema_text(schema)) == wish(json_schema=schema)
    assert hash(wish(json_schema=schema_text(schema))) == hash(wish(json_schema=schema))
