"""JSON that is still being written is followed exactly as far as it is JSON."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flare.server.parsing.json_text import JsonText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False, parse_constant=lambda _: [].pop())
    except (ValueError, IndexError):
        return False
    return True


def outcome(pieces: list[str]) -> tuple[str, bool, bool]:
    value, written = JsonText(), ""
    for piece in pieces:
        at = 0
        while at < len(piece) and not (value.done or value.bad):
            text, count = value.read(piece[at:])
            written += text
            at += count
    return written, value.done, value.bad


@settings(deadline=None)
@given(VALUES.map(lambda value: [value]), st.booleans(), st.sampled_from([None, 2]), st.text(max_size=3))
def test_json_is_read_to_its_end_and_no_further(value, ascii, indent, behind):
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert outcome([text + behind]) == outcome(list(text + behind)) == (text, True, False)


@settings(deadline=None, max_examples=500)
@example(['":', "\\", "n", '"', "{"])
@given(st.lists(st.sampled_from([*'{}[]",:\\u01-.eE+tn \n', '"a"', "true", "null", "12", '":', "d83d"]), max_size=10))
def test_only_json_is_taken_for_json(pieces):
    text = "[" + "".join(pieces)
    written, done, bad = outcome([text])
    assert outcome(list(text)) == (written, done, bad)
    if done:
        assert is_json(written)
    if bad:
        refused = next(text[:end] for end in range(len(text) + 1) if outcome([text[:end]])[2])
        assert not any(is_json(refused + rest) for rest in ("", "]", '"]', "0]", '":0}]', "}]"))
    if is_json(text):
        assert done


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{a", "{"), ('{"a" 1', '{"a" '), ('{"a": 1 2', '{"a": 1 '), ('{"a": 01', '{"a": 0'), ('{"a": 1,}', '{"a": 1,'),
        ("[1 }", "[1 "), ('["\\x', '["\\'), ('["\\u12g', '["\\u12'), ("[tru]", "[tru"), ("[1.]", "[1."), ("[-]", "[-"),
        ("[NaN", "["), ("['a'", "["), ("[,", "["), ("[1,]", "[1,"), ('{1', "{"),
    ],
)  # fmt: skip
def test_reading_stops_before_the_character_that_cannot_be(text, written):
    assert outcome([text]) == outcome(list(text)) == (written, False, True)


def test_control_characters_in_strings_are_escaped():
    assert outcome(['["a\n\x00"]']) == ('["a\\n\\u0000"]', True, False)
