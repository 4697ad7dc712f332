"""The frozen workload: it is what it was when it was recorded, and later turns build on recorded answers."""

import pytest

from flare.bench.entries import CATEGORIES, Entry, read_entries, render, write_entries
from flare.bench.record import kept, reference
from flare.checkpoint.gguf import GgufCheckpoint
from flare.errors import ConfigError

ENTRIES = read_entries(CATEGORIES)


@pytest.fixture(scope="module")
def vocabulary(smollm2_gguf):
    return GgufCheckpoint(smollm2_gguf).vocabulary()


@pytest.mark.parametrize("entry", ENTRIES, ids=[f"{entry.category}-{entry.id}" for entry in ENTRIES])
def test_recorded_ids_are_what_the_vocabulary_renders_today(entry, vocabulary):
    for index, turn in enumerate(entry.turns):
        assert turn.prompt_ids == render(entry, index, vocabulary)


@pytest.mark.parametrize("entry", ENTRIES, ids=[f"{entry.category}-{entry.id}" for entry in ENTRIES])
def test_every_conversation_names_its_source_and_its_answers(entry, vocabulary):
    assert entry.author
    assert entry.licence == "Apache-2.0"
    for turn in entry.turns[:-1]:
        assert turn.answer_seed is not None
        assert turn.answer_ids
        assert not set(turn.answer_ids) & set(vocabulary.eos_ids)
    assert entry.turns[-1].answer_ids == ()
    assert all(turn.budget_tokens + len(turn.prompt_ids) <= 4096 for turn in entry.turns)


def test_the_categories_are_all_there_and_ids_are_unique():
    assert {entry.category for entry in ENTRIES} == set(CATEGORIES)
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)


def test_long_contexts_are_long():
    lengths = [len(entry.turns[0].prompt_ids) for entry in ENTRIES if entry.category == "long_context"]
    assert min(lengths) >= 1500


def test_code_editing_starts_with_an_empty_ring_and_goes_on_with_recorded_answers(vocabulary):
    for entry in (entry for entry in ENTRIES if entry.category == "code_editing"):
        assert list(entry.measured()) == [0, 1, 2]
        assert entry.remembered(0) == []
        assert entry.remembered(2) == [entry.turns[0].answer_ids, entry.turns[1].answer_ids]
        assert vocabulary.decode(entry.turns[0].answer_ids) in vocabulary.decode(entry.turns[1].prompt_ids)
        assert all(kept(reference(entry), vocabulary.decode(turn.answer_ids)) >= 0.8 for turn in entry.turns[:2])


def test_an_identical_repeat_asks_the_same_without_the_first_answer():
    for entry in (entry for entry in ENTRIES if entry.category == "identical_repeat"):
        first, again = entry.turns
        assert again.prompt_ids == first.prompt_ids
        assert list(entry.measured()) == [1]
        assert entry.remembered(1) == [first.answer_ids]


def test_files_survive_reading_and_writing(tmp_path):
    write_entries("chat", read_entries(["chat"]), tmp_path)
    assert read_entries(["chat"], folder=tmp_path) == read_entries(["chat"])
    first: Entry = read_entries(["chat"], 1)[0]
    assert read_entries(["chat"])[0] == first


def test_an_unknown_category_names_those_there_are():
    with pytest.raises(ConfigError, match=r"'poems'; there are chat, reasoning"):
        read_entries(["poems"])
