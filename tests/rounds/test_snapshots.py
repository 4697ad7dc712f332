"""A prefix that comes back from a snapshot goes on as if it had been computed here."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from flare.contract.frames import Field, Terminal
from flare.contract.policies import SamplingPolicy
from tests.rounds.harness import GREEDY, Bench, emitted
from tests.rounds.prefixes import (
    CORES,
    READER,
    SOURCE,
    assert_equal,
    bits,
    bring_back,
    dirty,
    request_columns,
    rows_of,
    visible,
)

VOCAB = 61
TOKENS = torch.randint(0, VOCAB, (200,), generator=torch.Generator().manual_seed(21)).tolist()
LENGTHS = [64, 65, 67, 68, 127]  # 0, 1, 3, 4 and 63 tokens into a page
WIDTHS = [1, 8, 5, 1]
WARM = SamplingPolicy(temperature=1.1, top_k=30, seed=77, max_tokens=60, logprobs=3, repetition=1.2)


def consume(core: Bench, slot: int, tokens: list[int], *, sample: bool) -> np.ndarray:
    """Prefill in chunks of at most 64; the last record."""
    start = int(core.model.requests.consumed[slot])
    record = np.zeros(0, np.int64)
    for begin in range(start, len(tokens), 64):
        chunk = tokens[begin : begin + 64]
        record = core.chunk(slot, chunk, 64, sample=sample and begin + 64 >= len(tokens))
    return record


def go_on(core: Bench, slot: int, widths: list[int]) -> list[tuple[list[int], int, int, list[int]]]:
    """Rounds with the drafter's own proposals, or copies: (tokens, offered, accepted, likeliest drafts) of each."""
    seen = []
    for width in widths:
        laws = core.model.proposals
        record = core.round([slot], width, {slot: [5] * (width - 1) if laws is None else []})[slot]
        drafts = [] if laws is None else laws[: width - 1, 0].argmax(-1).tolist()
        seen.append((emitted(record), int(record[Field.OFFERED]), int(record[Field.ACCEPTED]), drafts))
    return seen


@cache
def cold(name: str, tokens: tuple[int, ...], policy: SamplingPolicy = GREEDY):
    """A core of its own that computes the whole prompt: first token, four rounds, state before and after them."""
    core = CORES[name]()
    core.admit(READER, tokens, policy)
    record = consume(core, READER, list(tokens), sample=True)
    begun = visible(core, READER, len(tokens), core.pages(READER)), request_columns(core, READER)
    logprobs = core.completion.logprobs[READER].copy(), core.completion.logprob_ids[READER].copy()
    said = go_on(core, READER, WIDTHS)
    length = int(core.model.requests.consumed[READER])
    ended = visible(core, READER, length, core.pages(READER)), request_columns(core, READER)
    return record, begun, logprobs, said, ended


def assert_goes_on_like_cold(core: Bench, name: str, tokens: list[int], policy: SamplingPolicy = GREEDY) -> None:
    """The reader holds the prompt and its first token: state, rounds, acceptance and final state are the cold ones."""
    _, begun, _, said, ended = cold(name, tuple(tokens), policy)
    assert_equal(visible(core, READER, len(tokens), core.pages(READER)), begun[0])
    assert_equal(request_columns(core, READER), begun[1])
    assert go_on(core, READER, WIDTHS) == said
    length = int(core.model.requests.consumed[READER])
    assert_equal(visible(core, READER, length, core.pages(READER)), ended[0])
    assert_equal(request_columns(core, READER), ended[1])


def sourced(name: str, length: int, *, program: str) -> tuple[Bench, int]:
    """A core whose source consumed so many tokens and kept them in a row: by the chunk itself, or afterwards."""
    core = CORES[name]()
    row = core.extent.snapshot_row(1)
    core.admit(SOURCE, TOKENS[:length], GREEDY)
    if program == "chunk":
        core.boundaries[SOURCE] = row
    consume(core, SOURCE, TOKENS[:length], sample=True)
    core.boundaries.clear()
    if program == "snapshot":
        core.keep(SOURCE, row)
    return core, row


@pytest.mark.parametrize("name", CORES)
def test_a_restored_slot_has_every_declared_byte_of_the_one_that_was_kept(name):
    core = CORES[name]()
    core.start(SOURCE, TOKENS[:37])
    go_on(core, SOURCE, WIDTHS)
    length = int(core.model.requests.consumed[SOURCE])
    kept, row = rows_of(core, SOURCE), core.extent.snapshot_row(2)
    others = {place: rows_of(core, place) for place in (1, 3, core.extent.snapshot_row(0), core.extent.snapshot_row(1))}
    assert core.keep(SOURCE, row)[Field.CONSUMED] == length
    assert_equal(rows_of(core, row), kept)
    go_on(core, SOURCE, WIDTHS)
    core.start(READER, TOKENS[50:90])
    dirty(core, READER)
    bring_back(core, row, TOKENS[:length], length)
    assert_equal(rows_of(core, READER), kept)
    assert_equal(rows_of(core, row), kept)
    for place, wanted in others.items():
        assert_equal(rows_of(core, place), wanted)
    assert core.model.requests.consumed[READER] == length
    assert len(kept) == (2 if name == "dense" else 2 + 3 * 2 + 2 + 2 * 2)  # tails, delta layers, PLE, rings


@pytest.mark.parametrize("program", ["snapshot", "chunk"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CORES)
def test_a_prompt_that_begins_with_a_kept_prefix_goes_on_like_a_cold_one(name, length, program):
    """The source goes on first, so that nothing it writes afterwards may reach the reader, nor the other way round."""
    core, row = sourced(name, length, program=program)
    go_on(core, SOURCE, WIDTHS)
    dirty(core, READER)
    tokens = TOKENS[: length + 9]
    bring_back(core, row, tokens, length)
    before = visible(core, SOURCE, int(core.model.requests.consumed[SOURCE]), core.pages(SOURCE))
    consume(core, READER, tokens, sample=True)
    assert_goes_on_like_cold(core, name, tokens)
    assert_equal(visible(core, SOURCE, int(core.model.requests.consumed[SOURCE]), core.pages(SOURCE)), before)


@pytest.mark.parametrize("policy", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CORES)
def test_a_whole_prompt_that_was_kept_samples_its_first_token_from_the_saved_output(name, length, policy):
    core, row = sourced(name, length, program="snapshot")
    go_on(core, SOURCE, WIDTHS)
    dirty(core, READER)
    tokens = TOKENS[:length]
    record = bring_back(core, row, tokens, length, policy, sample=True)
    wanted, _, (logprobs, ids), _, _ = cold(name, tuple(tokens), policy)
    same = [field for field in Field if field is not Field.GRAPH]
    assert record[same].tolist() == wanted[same].tolist()
    assert emitted(record) == emitted(wanted) != []
    asked = 1 + max(policy.logprobs, -1)
    assert np.array_equal(core.completion.logprobs[READER, :1, :asked], logprobs[:1, :asked])
    assert np.array_equal(core.completion.logprob_ids[READER, :1, :asked], ids[:1, :asked])
    assert_goes_on_like_cold(core, name, tokens, policy)


def test_a_restore_that_does_not_sample_leaves_the_pending_token_and_the_events_of_a_parked_request():
    core, row = sourced("dense", 67, program="snapshot")
    core.tables[READER] = [core.pages(SOURCE)[0], *core.pages(READER)[1:]]
    core.admit(READER, TOKENS[:60], WARM, generated=TOKENS[60:68])
    record = core.restore(READER, row, 67, copy=(core.pages(SOURCE)[1], core.pages(READER)[1]))
    requests = core.model.requests
    assert (record[Field.EMITTED], record[Field.CONSUMED], record[Field.GENERATED]) == (0, 67, 8)
    assert (requests.pending[READER], requests.terminal[READER]) == (TOKENS[67], 0)
    assert not requests.events[READER].any()


def test_pages_alone_bring_a_dense_prefix_back_at_any_page_boundary():
    core, _ = sourced("dense", 127, program="snapshot")
    core.tables[READER] = [core.pages(SOURCE)[0], *core.pages(READER)[1:]]
    dirty(core, READER)
    tokens = TOKENS[:90]
    core.admit(READER, tokens, GREEDY)
    assert core.restore(READER, -1, 64)[Field.FLAGS] == 0
    consume(core, READER, tokens, sample=True)
    assert_goes_on_like_cold(core, "dense", tokens)


@pytest.mark.parametrize("program", ["keep", "restore"])
def test_another_generation_keeps_and_restores_nothing(program):
    core, row = sourced("qwen38", 70, program="snapshot")
    core.model.requests.generation[SOURCE] = 8
    before = {name: bits(tensor).clone() for name, tensor in core.state.items() if not name.startswith("round.")}
    if program == "keep":
        core.keep(SOURCE, core.extent.snapshot_row(0))
    else:
        assert core.restore(SOURCE, row, 64, copy=(0, 1), sample=True)[Field.EMITTED] == 0
    null_slot, null_page = core.extent.null_slot, core.extent.null_page
    for name, tensor in core.state.items():
        if name in before and not name.startswith(("residual", "layers.1.ple.candidates")):
            kept = torch.arange(len(tensor)) != (null_page if len(tensor) == null_page + 1 else null_slot)
            assert torch.equal(bits(tensor[kept]), before[name].view(len(tensor), -1)[kept].view_as(bits(tensor[kept])))


def test_a_request_that_has_ended_can_still_be_kept():
    core, row = CORES["dense"](), 5
    core.admit(SOURCE, TOKENS[:66], replace(GREEDY, max_tokens=1))
    assert consume(core, SOURCE, TOKENS[:66], sample=True)[Field.TERMINAL] == Terminal.LENGTH
    assert core.keep(SOURCE, row)[Field.CONSUMED] == 66
    assert_equal(rows_of(core, row), rows_of(core, SOURCE))
