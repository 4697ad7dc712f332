"""Control tokens stand where they were generated, although decoding leaves them out and stop strings hold text back."""

from hypothesis import given
from hypothesis import strategies as st

from flare.runtime.text import Presenter
from flare.server.parsing.answer_format import ChatAsk
from flare.server.parsing.arrivals import Arrivals
from flare.server.parsing.reader import Reader
from tests.server.parsing.answers import CASES, TOOLS, Said, reading, said
from tests.server.parsing.models import format_of, vocabulary

MARKERS = ("<think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
WORDS = vocabulary(control=MARKERS)
CONTROL = {WORDS.control_ids[name]: name for name in (*MARKERS, "</think>")}


def generated(ids: list[int], stops: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Tokens and the text that each of them releases."""
    presenter = Presenter(WORDS.stream(), stops)
    events = []
    for id in ids:
        events.append((presenter.push(id), id))
        if presenter.stopped:
            return events
    events[-1] = (events[-1][0] + presenter.finish(), ids[-1])
    return events


def arrived(ids: list[int], stops: tuple[str, ...] = ()) -> str:
    arrivals = Arrivals(CONTROL, WORDS.stream())
    return "".join(arrivals.push(text, id) for text, id in generated(ids, stops))


def test_markers_that_are_control_tokens_are_read_like_those_that_are_text():
    for case in CASES:
        if case.format not in ("hermes", "glm", "parameters"):
            continue
        ids = WORDS.encode(f"<think>Hm.</think>{case.text}")
        reader = Reader(reading(case.format, thinks=True, control=CONTROL), WORDS.stream())
        parts = [part for text, id in generated(ids) for part in reader.push([text], [id])]
        answer = said(parts + reader.finish())
        assert (answer.content, answer.reasoning, answer.values) == (case.content, "Hm.", list(case.calls))


def test_a_format_knows_which_of_its_markers_are_control_tokens():
    format = format_of("glm", control=MARKERS)
    parser = format.prompt(ChatAsk(({"role": "user", "content": "Hi"},), 10**6, TOOLS)).parser()
    ids = WORDS.encode("<think>Hm.</think>So.<tool_call>now\n</tool_call>")
    parts = [part for text, id in generated(ids) for part in parser.push([text], [id])]
    assert said(parts + parser.finish()) == Said("So.", "Hm.", (("now", "{}"),))


def test_text_held_for_a_stop_string_comes_before_the_marker_behind_it():
    ids = WORDS.encode("on STO<tool_call>now\n</tool_call>")
    assert arrived(ids, ("STOP",)) == "on STO<tool_call>now\n</tool_call>"


def test_a_marker_inside_a_stop_string_is_gone_with_it():
    assert arrived(WORDS.encode("on STO<tool_call>P and on"), ("STOP",)) == "on "


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "é", "🌊", "S", "ST", "x", " "]), min_size=1, max_size=12)
)
def test_the_order_of_text_and_markers_is_the_tokens_own(pieces):
    text = "".join(pieces)
    assert arrived(WORDS.encode(text), ("STOP",)) == text
