"""The presenter: stop strings anywhere in the text, held text, characters over several tokens."""

import random

import pytest

from flare.runtime.text import Presenter
from tests.runtime.scripted_core import ByteStream


class PieceStream:
    """Tokens are indexes of given pieces."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int, /) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return ""


def present(pieces: list[str], stops: tuple[str, ...], min_tokens: int = 0) -> tuple[list[str], int, bool]:
    """Deltas, tokens used, whether a stop ended it."""
    presenter = Presenter(PieceStream(pieces), stops, min_tokens)
    deltas = []
    for token in range(len(pieces)):
        deltas.append(presenter.push(token))
        if presenter.stopped:
            return deltas, token + 1, True
    deltas.append(presenter.finish())
    assert presenter.text == "".join(deltas)
    return deltas, len(pieces), presenter.stopped


def oracle(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, int, bool]:
    """Grow the text token by token; the earliest end of any stop cuts it at that stop's beginning."""
    text = ""
    for used, piece in enumerate(pieces, 1):
        text += piece
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        if found:
            return text[: min(found)[1]], used, True
    return text, len(pieces), False


@pytest.mark.parametrize("seed", range(300))
def test_stops_agree_with_a_search_of_the_whole_text(seed):
    draw = random.Random(seed)
    pieces = ["".join(draw.choices("ab", k=draw.randint(0, 3))) for _ in range(draw.randint(1, 12))]
    stops = tuple("".join(draw.choices("abc", k=draw.randint(1, 4))) for _ in range(draw.randint(1, 3)))
    deltas, used, stopped = present(pieces, stops)
    assert ("".join(deltas), used, stopped) == oracle(pieces, stops)


def test_text_that_could_become_a_stop_is_held_and_let_go():
    deltas, _, stopped = present(["x<", "en", "t>", "<en", "d>", "y"], ("<end>",))
    assert deltas == ["x", "", "<ent>", "", ""] and stopped


def test_held_text_is_released_at_the_end():
    assert present(["a<", "end"], ("<end>",)) == (["a", "", "<end"], 2, False)


def test_the_stop_that_completes_first_wins_even_when_it_begins_later():
    deltas, _, _ = present(["abcdefg"], ("abcdefg", "cd"))
    assert deltas == ["ab"]


def test_a_stop_that_completes_within_min_tokens_is_text():
    assert present(["a.", "b", "c.", "d"], (".",), min_tokens=2) == (["a.", "b", "c"], 3, True)


def test_a_stop_let_through_by_min_tokens_is_not_found_again():
    assert present(["xa", "c"], ("xab", "a"), min_tokens=1) == (["", "xac", ""], 2, False)


def test_no_delta_ends_inside_a_character():
    presenter, text = Presenter(ByteStream(), ("鯨!",)), "né 🐳 海🌊 鯨?"
    deltas = [presenter.push(byte) for byte in text.encode()]
    assert "\ufffd" not in "".join(deltas) and "".join(deltas) + presenter.finish() == text
