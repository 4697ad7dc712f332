"""Broken readers: each must fail the very test that guards what it breaks."""

import json
from collections.abc import Callable

import pytest

from flare.server.parsing import reader
from flare.server.parsing.arrivals import Arrivals
from flare.server.parsing.formats import hermes
from flare.server.parsing.json_text import parsed
from flare.server.parsing.reader import Reader
from flare.server.parsing.stream import Stream
from tests.server.parsing import test_arrivals, test_reader
from tests.server.parsing.answers import CASES

Patch = Callable[[pytest.MonkeyPatch], None]


def lose_held_text_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reader, "finish", lambda self: [])


def split_on_a_marker_inside_a_string(patch: pytest.MonkeyPatch) -> None:
    def json_call(stream, calls, end):
        text, _ = yield from stream.until((end,))
        call = parsed(text)
        yield calls.begin(call["name"])
        yield calls.arguments(json.dumps(call["arguments"]))

    patch.setattr(hermes, "json_call", json_call)


def count_reasoning_after_the_marker(patch: pytest.MonkeyPatch) -> None:
    real = Reader.push

    def push(self, texts, token_ids):
        parts = real(self, texts, token_ids)
        self.reasoning_tokens = self._tokens if self.reasoning_tokens else 0
        return parts

    patch.setattr(Reader, "push", push)


def look_at_one_chunk_only(patch: pytest.MonkeyPatch) -> None:
    def safe(self, markers):
        found = [(at, marker) for marker in markers if (at := self.text.find(marker)) >= 0]
        return min(found) if found else (len(self.text), None)

    patch.setattr(Stream, "_safe", safe)


def forget_what_was_no_call(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "recorded", lambda self: "")


def take_calls_inside_thoughts(patch: pytest.MonkeyPatch) -> None:
    def thoughts(stream):
        yield from ()

    patch.setattr(reader, "thoughts", thoughts)


def put_markers_where_text_arrives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Arrivals, "push", lambda self, text, id: text + self._control.get(id, ""))


MUTANTS: dict[Patch, Callable[[], None]] = {
    lose_held_text_at_the_end: lambda: test_reader.test_an_answer_says_what_it_holds(CASES[-1]),
    split_on_a_marker_inside_a_string: test_reader.test_a_marker_inside_a_string_ends_nothing,
    count_reasoning_after_the_marker: lambda: test_reader.test_reasoning_tokens_end_with_the_marker(
        ["a", "b", "</think>", "c", "d"], 3
    ),
    look_at_one_chunk_only: lambda: test_reader.test_every_boundary_reads_alike(CASES[0]),
    forget_what_was_no_call: lambda: test_reader.test_what_is_no_call_is_content("<tool_call></tool_call>"),
    take_calls_inside_thoughts: test_reader.test_a_call_marker_inside_thoughts_is_no_call,
    put_markers_where_text_arrives: test_arrivals.test_text_held_for_a_stop_string_comes_before_the_marker_behind_it,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_reader_is_noticed(mutant, monkeypatch):
    MUTANTS[mutant]()
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        MUTANTS[mutant]()
