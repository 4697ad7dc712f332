"""Texts beyond the context: refused from their length without being encoded; others are encoded beside the streams."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flare.contract.vocabulary import Vocabulary
from tests.server.serving import Served, answering, byte_vocabulary, scripted, until

CONTEXT, LONGEST = 512, len("<|other_end|>")  # of the scripted manifest, and of the byte vocabulary
TOO_LONG = "x" * (CONTEXT * LONGEST)
UNCLEAR = "x" * (CONTEXT + 1)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with scripted(answering({"hi": "there"})) as served:
        yield served


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is encoded."""
    texts: list[str] = []
    encode = Vocabulary.encode_rendered

    def spy(self: Vocabulary, text: str) -> list[int]:
        texts.append(text)
        return encode(self, text)

    monkeypatch.setattr(Vocabulary, "encode_rendered", spy)
    return texts


def bodies(text: str) -> list[tuple[str, dict[str, Any], str]]:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": text}]
    return [
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/completions", {"prompt": ["hi", text]}, "prompt[1]"),
        ("/v1/chat/completions", {"messages": messages}, "messages"),
        ("/tokenize", {"prompt": text}, "prompt"),
        ("/tokenize", {"messages": messages}, "messages"),
    ]


@pytest.mark.parametrize(("path", "body", "param"), bodies(TOO_LONG))
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(served, encoded, path, body, param):
    refused = served.post(path, body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert f"{param} has at least 51" in error["message"]
    assert encoded == []


@pytest.mark.parametrize(("path", "body", "param"), bodies(UNCLEAR)[:3])
def test_a_text_that_might_fit_is_counted(served, encoded, path, body, param):
    error = served.post(path, body).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "at least" not in error["message"] and encoded


def test_more_prompts_than_may_wait_are_refused_before_any_is_encoded(served, encoded):
    error = served.post("/v1/completions", {"prompt": ["hi"] * 200}).json()["error"]
    assert (error["code"], error["param"], encoded) == ("too_many_completions", "prompt", [])


def test_streams_go_on_while_a_text_is_encoded(monkeypatch):
    """Encoding waits for the stream to end: on the event loop, both would wait for each other."""
    done, began = threading.Event(), threading.Event()
    encode = Vocabulary.encode_rendered

    def slow(self: Vocabulary, text: str) -> list[int]:
        if text.startswith("slow"):
            began.set()
            assert done.wait(5), "the stream did not go on"
        return encode(self, text)

    monkeypatch.setattr(Vocabulary, "encode_rendered", slow)
    with scripted(answering({"hi": "there" * 20, "slow": "ok"}), pause_s=0.005) as served:
        answers: list[int] = []
        body = {"prompt": "slow", "max_tokens": 2}
        other = threading.Thread(target=lambda: answers.append(served.post("/v1/completions", body).status_code))
        stream = served.client().completions.create(model="smollm2", prompt="hi", stream=True, max_tokens=60)
        next(iter(stream))
        other.start()
        until(began.is_set)
        for _ in stream:
            pass
        done.set()
        other.join()
        assert answers == [200]


def test_encoding_leaves_the_interpreter_to_other_threads():
    """Only the tokenizer's batches let go of the interpreter's lock."""
    vocabulary, text = byte_vocabulary(), "ab " * 1_000_000
    turns, done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)

    ticking = threading.Thread(target=count)
    ticking.start()
    try:
        before, began = turns, time.perf_counter()
        vocabulary.encode_rendered(text)
        took_ms = (time.perf_counter() - began) * 1000
        seen = turns - before
    finally:
        done.set()
        ticking.join()
    assert seen > took_ms / 100
