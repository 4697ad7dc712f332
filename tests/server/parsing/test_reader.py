"""What an answer says does not depend on how its tokens were cut, and nothing of it is lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.server.parsing.reader import Reader
from tests.server.parsing.answers import (
    CASES,
    PLAIN,
    TWICE,
    Said,
    chunks,
    cut,
    glm,
    hermes,
    json_line,
    parameters,
    read,
    reading,
    said,
)

IDS = [f"{case.format}-{index}" for index, case in enumerate(CASES)]
THOUGHTS = "Shall I <tool_call>\n{}\n</tool_call>? Or <think> more?"
FRAGMENTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "</", "<", ">", "\n", " ", "{", "}", '"', "\\"),
    *(
        '{"name": "now", "arguments": {',
        '"name"',
        '"arguments": ',
        ": ",
        ",",
        "now",
        "é🌊",
        "1",
        "[",
        "]",
        "null",
        "text",
    ),
    *("<function=now>", "<parameter=city>", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("</arg_value>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *("<｜DSML｜function_calls>", '<｜DSML｜invoke name="now">', '<｜DSML｜parameter name="a" string="false">'),
    "```json",
]
FORMATS = ("hermes", "parameters", "glm", "deepseek", "deepseek_fenced", "dsml", "json")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_answer_says_what_it_holds(case):
    heard = read(reading(case.format), case.text)
    assert (heard.content, heard.values) == (case.content, list(case.calls))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_boundary_reads_alike(case):
    whole = read(reading(case.format), case.text)
    assert all(read(reading(case.format), *cut(case.text, place)) == whole for place in range(len(case.text)))


@pytest.mark.parametrize("size", range(1, 9))
def test_every_chunk_size_reads_alike(size):
    for case in CASES:
        text = f"<think>\n{THOUGHTS}\n</think>\n\n{case.text}"
        whole = read(reading(case.format, thinks=True), text)
        assert whole.reasoning == THOUGHTS
        assert read(reading(case.format, thinks=True), *chunks(text, size)) == whole
        assert read(reading(case.format, thinks=True), *chunks(text, size), at_once=True) == whole


@settings(deadline=None, max_examples=300)
@given(
    pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=14),
    places=st.lists(st.integers(0, 200), max_size=6),
    format=st.sampled_from(FORMATS),
    thinking=st.booleans(),
)
def test_any_text_reads_alike_however_it_is_cut(pieces, places, format, thinking):
    how, text = reading(format, thinks=True, thinking=thinking), "".join(pieces)
    assert read(how, *cut(text, *places)) == read(how, text) == read(how, *text)


@settings(deadline=None, max_examples=200)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=12), format=st.sampled_from(FORMATS))
def test_an_answer_without_calls_and_thoughts_is_told_as_it_came(pieces, format):
    heard, text = read(reading(format), *pieces), "".join(pieces)
    assert heard.calls or heard.content == text


def test_a_model_without_formats_says_its_text():
    text = "\n <think>x</think> <tool_call>{}</tool_call>\n"
    assert read(reading(None), *text) == Said(text)


def test_content_is_told_as_soon_as_it_is_no_marker():
    reader = Reader(reading())
    told = [said(reader.push([piece], [1])).content for piece in ("Hi <tool", "_call", "s> and", " more")]
    assert told == ["Hi", "", " <tool_calls> and", " more"]


def test_arguments_are_told_while_they_are_written():
    written = [*read(reading(), '<tool_call>{"name": "now", "arguments": {"a": [1, "b', finish=False).calls]
    assert written == [("now", '{"a": [1, "b')]
    written = read(reading("parameters"), "<tool_call><function=get_weather><parameter=city>\nZür", finish=False).calls
    assert written == (("get_weather", '{"city": "Zür'),)


def test_two_calls_in_one_chunk_are_two_calls():
    text = "".join(hermes(*call) for call in TWICE)
    assert [name for name, _ in read(reading(), text).calls] == ["get_weather", "now"]


def test_a_marker_inside_a_string_ends_nothing():
    arguments = {"city": 'a </tool_call> <tool_call> {"} </think>'}
    assert read(reading(), hermes("get_weather", arguments)).values == [("get_weather", arguments)]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"arguments": {"city": "A"}, "name": "get_weather"}', {"city": "A"}),
        ('{"name": "get_weather", "parameters": {"city": "A"}}', {"city": "A"}),
        ('{"id": 7, "name": "get_weather", "arguments": "{\\"city\\": \\"A\\"}"}', {"city": "A"}),
        ('{"name": "get_weather", "arguments": null}', {}),
        ('{"name": "get_weather"}', {}),
        ('{"name": "get_weather", "arguments": {"city": "A"}', {"city": "A"}),
        ('{"name": "get_weather", "arguments": {"city": "line\nline\ttab"}}', {"city": "line\nline\ttab"}),
        ('{"name": "get_weather", "arguments": {"city": "\\ud83c\\udf0a"}}', {"city": "🌊"}),
    ],
)
def test_calls_that_models_write_a_little_differently_are_calls(text, arguments):
    for pieces in ([text], list(text)):
        heard = read(reading(), "<tool_call>", *pieces, "\n</tool_call>")
        assert (heard.content, heard.values) == ("", [("get_weather", arguments)])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nno json\n</tool_call>",
        "<tool_call>{'name': 'now', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "now", "arguments": {x: 1}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "{"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>",
        '<tool_call>{"name": "now", "argu',
    ],
)
def test_what_is_no_call_is_content(text):
    assert read(reading(), *f" before\n{text}\nafter") == Said(f" before\n{text}\nafter")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("parameters", "<tool_call>\n<function=now>\nnothing\n</function>"),
        ("parameters", "<tool_call> of the wild"),
        ("glm", "<tool_call>now\nnothing</tool_call>"),
        ("deepseek", "<｜tool▁calls▁begin｜>now"),
        ("deepseek", "<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>"),
        ("dsml", '<｜DSML｜invoke name="now">nothing'),
        ("json", '{"name": "unknown", "arguments": {}}'),
        ("json", 'Text {"name": "now", "arguments": {}}'),
        ("json", '{"answer": 42}\n'),
    ],
)
def test_what_is_no_call_is_content_in_every_format(format, text):
    assert read(reading(format), *text) == Said(text)


def test_a_call_that_breaks_after_it_was_begun_stays_begun_and_is_content_too():
    text = '<tool_call>{"name": "now", "arguments": {"a": 1, b}}</tool_call>'
    assert read(reading(), *text) == Said(text, "", (("now", '{"a": 1, '),))


def test_a_good_call_after_a_broken_one_is_a_call():
    heard = read(reading(), f"<tool_call>oh</tool_call>{hermes('now', {})}")
    assert heard == Said("<tool_call>oh</tool_call>", "", (("now", "{}"),))


@pytest.mark.parametrize(
    ("format", "text", "arguments"),
    [
        ("hermes", hermes("get_weather", PLAIN).partition('s": 3')[0], '{"city": "Zürich", "day'),
        ("parameters", parameters("get_weather", PLAIN).partition("ich")[0], '{"city": "Zür'),
        ("glm", glm("get_weather", PLAIN).partition("ich")[0], '{"city": "Zür'),
    ],
)
def test_a_call_cut_by_the_limit_keeps_the_arguments_told_so_far(format, text, arguments):
    assert read(reading(format), *text) == Said("", "", (("get_weather", arguments),))


def test_an_end_of_answer_right_behind_a_call_is_as_good_as_its_marker():
    text = hermes("get_weather", PLAIN)
    assert read(reading(), text.removesuffix("\n</tool_call>")).values == [("get_weather", PLAIN)]


def test_thoughts_are_told_apart_whether_or_not_the_prompt_opened_them():
    text = f"{THOUGHTS}\n</think>\n\nDone. </think>"
    assert read(reading(thinks=True, thinking=True), *text) == Said("Done. </think>", THOUGHTS)
    assert read(reading(thinks=True, thinking=True), *f"<think>{text}") == Said("Done. </think>", THOUGHTS)
    assert read(reading(thinks=True), *f"\n<think>\n{text}") == Said("Done. </think>", THOUGHTS)
    assert read(reading(thinks=True), "Hm <think>\n") == Said("Hm <think>\n")
    assert read(reading(thinks=True, thinking=True), "\n\n</think>\n\nYes") == Said("Yes")


def test_a_call_marker_inside_thoughts_is_no_call():
    heard = read(reading(thinks=True, thinking=True), *f"{hermes('now', {})}</think>{hermes('get_weather', PLAIN)}")
    assert (heard.reasoning, heard.values) == (hermes("now", {}), [("get_weather", PLAIN)])


def test_thoughts_that_never_end_are_all_there_is():
    assert read(reading(thinks=True, thinking=True), *"on and on </thin\n") == Said("", "on and on </thin\n")


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        (["a", "b", "</think>", "c", "d"], 3),
        (["a", "</", "think", ">", "c"], 4),
        (["a", "b", "c", ""], 4),
        (["<think>a</think>b", "c"], 1),
        ([], 0),
    ],
)
def test_reasoning_tokens_end_with_the_marker(pieces, count):
    for events in ([pieces], [[piece] for piece in pieces]):
        reader = Reader(reading(thinks=True, thinking=True))
        for event in events:
            reader.push(event, range(len(event)))
        reader.finish()
        assert reader.reasoning_tokens == count <= len(pieces)


def test_an_answer_that_does_not_think_has_no_reasoning_tokens():
    reader = Reader(reading(thinks=True))
    reader.push(["\n", "<th", "ank", "you>", ""], range(5))
    reader.finish()
    assert reader.reasoning_tokens == 0


def test_thoughts_that_the_model_opens_count_with_their_markers():
    reader = Reader(reading(thinks=True))
    reader.push(["\n", "<think>", "a", "</think>", "b"], range(5))
    assert reader.reasoning_tokens == 4


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5))
def test_any_arguments_come_through(value):
    arguments = {"city": "", "free": value}
    for format, text in (("hermes", hermes("get_weather", arguments)), ("json", json_line("get_weather", arguments))):
        heard = read(reading(format), *chunks(text, 3))
        assert heard.calls == (("get_weather", json.dumps(arguments, ensure_ascii=False)),)
