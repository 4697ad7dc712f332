"""A round that crosses a page boundary keeps the state at the boundary, wherever in the block it lies."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest
import torch

from flare.contract.frames import Field, Flag, Terminal
from tests.rounds.harness import GREEDY, Bench, emitted
from tests.rounds.prefixes import CORES, READER, SOURCE, assert_equal, bring_back, dirty, rows_of, visible
from tests.rounds.test_snapshots import TOKENS, VOCAB, assert_goes_on_like_cold, consume, go_on

P = 64
WIDTH = 8
PLACES = range(1, WIDTH + 1)  # the boundary lies after so many rows of the round


@cache
def truth(name: str, place: int) -> list[int]:
    """The prompt that ends `place` tokens before the boundary, and what greedy decoding says after it."""
    core, prompt = CORES[name](), TOKENS[: P - place]
    said = [core.start(SOURCE, prompt)]
    while len(said) < 2 * WIDTH:
        said += emitted(core.round([SOURCE], 1, {})[SOURCE])
    return [*prompt, *said]


@cache
def started(name: str, place: int) -> tuple[Bench, dict[str, torch.Tensor]]:
    """A core before the round that may cross, and its state to come back to."""
    core = CORES[name]()
    core.start(SOURCE, truth(name, place)[: P - place])
    return core, {each: tensor.clone() for each, tensor in core.state.items()}


def before_crossing(name: str, place: int) -> Bench:
    core, state = started(name, place)
    for each, tensor in core.state.items():
        tensor.copy_(state[each])
    core.tables.clear()
    core.boundaries = {SOURCE: core.extent.snapshot_row(1)}
    return core


def drafts(name: str, place: int, accepted: int, width: int = WIDTH) -> list[int]:
    """Copies of which exactly so many are what greedy decoding says next."""
    following = truth(name, place)[P - place + 1 :]
    return [token if at < accepted else (token + 1) % VOCAB for at, token in enumerate(following[: width - 1])]


@cache
def state_at_the_boundary(name: str, place: int) -> dict[str, torch.Tensor]:
    """What a chunk that ends at the boundary leaves in a core of its own."""
    core = CORES[name]()
    core.admit(SOURCE, truth(name, place)[:P], GREEDY)
    consume(core, SOURCE, truth(name, place)[:P], sample=False)
    return visible(core, SOURCE, P, core.pages(SOURCE))


def check_crossing(name: str, place: int, accepted: int) -> None:
    core = before_crossing(name, place)
    row = core.boundaries[SOURCE]
    untouched = rows_of(core, row)
    others = {other: rows_of(core, core.extent.snapshot_row(other)) for other in (0, 2)}
    record = core.round([SOURCE], WIDTH, {SOURCE: drafts(name, place, accepted)})[SOURCE]
    assert record[Field.EMITTED] == accepted + 1
    for other, wanted in others.items():
        assert_same_bits(rows_of(core, core.extent.snapshot_row(other)), wanted)
    if accepted + 1 < place:
        assert record[Field.FLAGS] == 0
        assert_same_bits(rows_of(core, row), untouched)
        return
    assert record[Field.FLAGS] == Flag.BOUNDARY
    core.boundaries.clear()
    assert_equal(visible(core, row, P, core.pages(SOURCE)), state_at_the_boundary(name, place))
    go_on(core, SOURCE, [WIDTH, 1])
    assert_equal(visible(core, row, P, core.pages(SOURCE)), state_at_the_boundary(name, place))
    dirty(core, READER)
    tokens = [*truth(name, place)[:P], *TOKENS[P : P + 5]]
    bring_back(core, row, tokens, P)
    consume(core, READER, tokens, sample=True)
    assert_goes_on_like_cold(core, name, tokens)


def assert_same_bits(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CORES)
def test_every_accepted_count_leaves_the_state_at_the_boundary_or_nothing(name, place):
    for accepted in range(WIDTH):
        check_crossing(name, place, accepted)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("program", ["decode", "round"])
def test_a_round_of_one_token_ends_on_the_boundary(name, program):
    core = before_crossing(name, 1)
    record = core.decode([SOURCE])[SOURCE] if program == "decode" else core.round([SOURCE], 1, {})[SOURCE]
    assert (record[Field.FLAGS], record[Field.CONSUMED]) == (Flag.BOUNDARY, P)
    found = visible(core, core.boundaries[SOURCE], P, core.pages(SOURCE))
    # Ordinary decoding leaves the drafter behind; its core has none.
    kept = {each for each in found if program == "round" or not each.startswith("mtp.")}
    wanted = state_at_the_boundary(name, 1)
    assert_equal({each: found[each] for each in kept}, {each: wanted[each] for each in kept})


@pytest.mark.parametrize("place", [2, 5])
@pytest.mark.parametrize("name", CORES)
def test_a_stop_before_the_boundary_keeps_nothing_behind_it(name, place):
    """All drafts are accepted; the round is cut to fewer rows than the boundary needs, then to exactly as many."""
    for rows in (place - 1, place):
        core = before_crossing(name, place)
        untouched = rows_of(core, core.boundaries[SOURCE])
        core.model.requests.policy.stops[SOURCE, 0] = stop = truth(name, place)[P - place + rows]
        if stop in truth(name, place)[P - place + 1 : P - place + rows]:
            continue
        record = core.round([SOURCE], WIDTH, {SOURCE: drafts(name, place, WIDTH - 1)})[SOURCE]
        assert (record[Field.EMITTED], record[Field.TERMINAL]) == (rows, Terminal.STOP)
        assert record[Field.FLAGS] == (Flag.BOUNDARY if rows == place else 0)
        if rows < place:
            assert_same_bits(rows_of(core, core.boundaries[SOURCE]), untouched)
        else:
            found = visible(core, core.boundaries[SOURCE], P, core.pages(SOURCE))
            assert_equal(found, state_at_the_boundary(name, place))


@pytest.mark.parametrize("name", CORES)
def test_lanes_of_one_round_cross_each_on_its_own(name):
    """Of four lanes one crosses, one crosses without a row, one stays short, one is dead and names a row."""
    core, lengths = CORES[name](), {0: P - 2, 1: P - 3, 2: 20, 3: P - 1}
    for slot, length in lengths.items():
        core.start(slot, TOKENS[slot : slot + length])
    core.model.requests.terminal[3] = int(Terminal.STOP)
    rows = [core.extent.snapshot_row(index) for index in range(3)]
    core.boundaries = {0: rows[1], 2: rows[2], 3: rows[0]}
    untouched = {row: rows_of(core, row) for row in (rows[0], rows[2])}
    alone = CORES[name]()
    alone.start(0, TOKENS[: P - 2])
    said = [emitted(alone.round([0], 1, {})[0])[0] for _ in range(4)]
    pending = int(core.model.requests.pending[0])
    copied = {slot: list(said[:3]) if slot == 0 else [1, 2, 3] for slot in lengths}
    records = core.round([2, 0, 3, 1], 4, copied)
    assert [records[slot][Field.FLAGS] for slot in range(4)] == [Flag.BOUNDARY, 0, 0, 0]
    for row, wanted in untouched.items():
        assert_same_bits(rows_of(core, row), wanted)
    wanted = CORES[name]()
    tokens = [*TOKENS[: P - 2], pending, said[0]]
    wanted.admit(0, tokens, GREEDY)
    consume(wanted, 0, tokens, sample=False)
    assert_equal(visible(core, rows[1], P, core.pages(0)), visible(wanted, 0, P, wanted.pages(0)))


@pytest.mark.parametrize("name", CORES)
def test_a_round_wider_than_what_is_left_of_the_ring_keeps_the_open_group(name):
    """The widest round whose first row is the boundary's last: what it writes afterwards comes closest to the group."""
    core = before_crossing(name, 1)
    core.round([SOURCE], WIDTH, {SOURCE: drafts(name, 1, WIDTH - 1)})
    for tags in ring_tags(core):
        held = core.state[tags][core.boundaries[SOURCE]]
        open_group = range(P - 4, P - 1) if tags.startswith("mtp.") else range(0)
        assert all(held[place % len(held)] == place for place in open_group)
    assert len(list(ring_tags(core))) == (0 if name == "dense" else 2)


def ring_tags(core: Bench) -> Iterable[str]:
    return (name for name in core.state if name.endswith("index_tags"))


def test_a_core_without_snapshots_looks_for_no_boundary():
    core, copied = CORES["dense"](), []
    core.start(SOURCE, TOKENS[: P - 1])
    core.boundaries = {SOURCE: core.extent.snapshot_row(1)}
    core.model = replace(
        core.model,
        ops=replace(core.model.ops, copy_rows=lambda *given: copied.append(given)),
        extent=replace(core.extent, snapshots=0),
    )
    record = core.round([SOURCE], 1, {})[SOURCE]
    assert (record[Field.FLAGS], record[Field.CONSUMED], copied) == (0, P, [])
