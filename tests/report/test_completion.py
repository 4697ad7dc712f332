"""What a terminal shows of an event."""

import pytest

from flare.report.completion import source_text
from flare.runtime.results import Event


@pytest.mark.parametrize("texts", [("a\r\n", "bc"), ("\x07x",), ("é\b", "\f", "y")])
def test_control_characters_repeat_nothing(texts):
    event = Event("".join(texts), (1,) * len(texts), ("target",) * len(texts), texts)
    shown = source_text(event).plain
    assert shown == "".join(character for character in event.text if character not in "\x07\b\v\f\r")


def test_held_text_of_a_cancelled_request_is_shown():
    assert source_text(Event("held")).plain == "held"
