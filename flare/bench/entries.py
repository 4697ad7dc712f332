"""The frozen workload: conversations with recorded token ids, one JSON-lines file per category in `workload/`.

A conversation has an opening (scripted messages) and turns. A turn's prompt is the opening, the earlier turns with
their recorded answers, and its own message; so every arm and every run reads the same context. Recorded answers were
generated once, by plain decoding under the recipe's own sampling (`python -m flare.bench.record`), and are what the
history ring is given before a later turn: text that this model has generated, in a conversation it is asked to go on
with. The turn's own output is generated freely and measured.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flare.contract.vocabulary import Vocabulary
from flare.errors import ConfigError

FOLDER = Path(__file__).parent / "workload"
CATEGORIES = ("chat", "reasoning", "code_editing", "json", "long_context", "identical_repeat")
Message = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """One request.

    Attributes:
        message: what the user says.
        start: text the answer begins with; part of the prompt, so that a small model answers in the wanted form.
        budget_tokens: tokens generated, end tokens ignored, so that all arms generate as many.
        alone: the prompt holds no earlier turn (an identical repeat of the first).
        prompt_ids: the rendered prompt.
        answer_ids, answer_seed: the recorded answer without its end token and the seed that drew it; empty and None for
            a last turn.
    """

    message: str
    start: str
    budget_tokens: int
    alone: bool = False
    prompt_ids: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] = ()
    answer_seed: int | None = None


@dataclass(frozen=True)
class Entry:
    """One conversation. `author` and `licence` say where its text comes from."""

    id: str
    category: str
    author: str
    licence: str
    opening: tuple[Message, ...]
    turns: tuple[Turn, ...]

    def measured(self) -> Sequence[int]:
        """Indexes of the turns that are timed: all, or of identical repeats the repeated ones."""
        return range(1 if self.category == "identical_repeat" else 0, len(self.turns))

    def remembered(self, index: int) -> list[tuple[int, ...]]:
        """Recorded answers of the turns before this one, oldest first: what the ring holds."""
        return [turn.answer_ids for turn in self.turns[:index]]


def render(entry: Entry, index: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The prompt of a turn as this vocabulary renders it today; `Turn.prompt_ids` are what it was when recorded."""
    turn = entry.turns[index]
    messages = list(entry.opening)
    for earlier in () if turn.alone else entry.turns[:index]:
        answer = earlier.start + vocabulary.decode(earlier.answer_ids)
        messages += [{"role": "user", "content": earlier.message}, {"role": "assistant", "content": answer}]
    text = vocabulary.render([*messages, {"role": "user", "content": turn.message}]) + turn.start
    return tuple(vocabulary.tokenizer.encode(text, add_special_tokens=False).ids)


def read_entries(categories: Sequence[str], limit: int | None = None, folder: Path = FOLDER) -> list[Entry]:
    """The conversations of some categories, at most `limit` of each.

    Raises:
        ConfigError: a category that is not there.
    """
    entries: list[Entry] = []
    for category in categories:
        path = folder / f"{category}.jsonl"
        if not path.is_file():
            raise ConfigError(f"workload.categories names '{category}'; there are {', '.join(CATEGORIES)}")
        lines = path.read_text(encoding="utf-8").splitlines()
        entries += [_entry(json.loads(line)) for line in lines[:limit]]
    return entries


def write_entries(category: str, entries: Sequence[Entry], folder: Path = FOLDER) -> None:
    """Write one category's file, one conversation a line."""
    lines = [json.dumps(_document(entry), ensure_ascii=False) + "\n" for entry in entries]
    (folder / f"{category}.jsonl").write_text("".join(lines), encoding="utf-8")


def with_turn(entry: Entry, index: int, turn: Turn) -> Entry:
    """The same conversation with one turn replaced."""
    return replace(entry, turns=(*entry.turns[:index], turn, *entry.turns[index + 1 :]))


def _entry(document: dict[str, Any]) -> Entry:
    turns = tuple(_turn(turn) for turn in document["turns"])
    return Entry(**{**document, "opening": tuple(document["opening"]), "turns": turns})


def _turn(document: dict[str, Any]) -> Turn:
    ids = {key: tuple(document[key]) for key in ("prompt_ids", "answer_ids")}
    return Turn(**{**document, **ids})


def _document(entry: Entry) -> dict[str, Any]:
    return {**vars(entry), "opening": list(entry.opening), "turns": [vars(turn) for turn in entry.turns]}
