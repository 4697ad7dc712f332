"""Cached prefixes, end to end over the scripted device: what is hit, what is kept, who may see it, what makes room."""

import pytest

from flare.contract.frames import Field, Flag
from flare.runtime.engine import Engine
from flare.runtime.requests import Request
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import mixing, saying, scripted_engine
from tests.runtime.scripted_device import scripted_manifest
from tests.runtime.test_engine_batches import prompt_of, reference

KINDS = {
    "snapshots": {"snapshots": 12},
    "absorbing": {"snapshots": 12, "draft_source": "mtp+copy"},
    "paged": {"paged": True},
    "paged with snapshots": {"paged": True, "snapshots": 12},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def engine(request):
    with scripted_engine(mixing(), scripted_manifest(**request.param)) as engine:
        yield engine


def run(engine: Engine, prompt: list[int], max_tokens: int = 8, salt: str | None = None, **wishes) -> Request:
    """One request to its end, everything checked at each step."""
    (handle,) = engine.submit(prompt, Sampling(max_tokens=max_tokens, **wishes))
    handle.cache_salt = salt
    while engine.step():
        engine.check()
    done = handle.completion
    assert done is not None and list(done.token_ids) == reference(prompt, max_tokens)[: len(done.token_ids)]
    return handle


def chunks(engine: Engine) -> int:
    return sum(entry[0] in ("prefill", "resume") for entry in engine._device.log)


@pytest.mark.parametrize("length", [1, 3, 4, 63, 64, 65, 67, 68, 127, 128, 129, 132])
def test_the_same_prompt_again_runs_none_or_one_of_its_chunks(engine, length):
    prompt = prompt_of(length)
    assert run(engine, prompt).completion.usage.cached_tokens == 0
    before = chunks(engine)
    again = run(engine, prompt)
    if engine.scheduler.memory.snapshots.total:
        assert again.completion.usage.cached_tokens == length and chunks(engine) == before
    else:
        assert again.completion.usage.cached_tokens == (length - 1) // 64 * 64
    assert again.completion.sources[0] == "prefill"


@pytest.mark.parametrize("length", [5, 60, 64, 70, 128])
def test_the_next_turn_begins_where_the_last_one_ended(engine, length):
    first = run(engine, prompt_of(length), 12)
    after = [*first.tokens, 90, 91, 92]
    cached = run(engine, after).completion.usage.cached_tokens
    consumed = len(first.tokens) - 1
    assert cached == (consumed if engine.scheduler.memory.snapshots.total else consumed // 64 * 64)


def test_the_third_prompt_of_a_kind_begins_at_the_branch():
    """Two prompts share 70 tokens and no chunk ends at 64: the second one keeps the state there for the third."""
    for name, sizes in KINDS.items():
        with scripted_engine(mixing(), scripted_manifest(**sizes, chunks=(16, 256))) as engine:
            common = prompt_of(70)
            cached = [
                run(engine, [*common, *prompt_of(40, first)]).completion.usage.cached_tokens for first in (70, 80, 90)
            ]
        assert cached == ([0, 64, 64] if "paged" in name else [0, 0, 64]), name


def test_a_prefix_may_begin_in_the_middle_of_an_answer(engine):
    """What decoding crossed is kept: the newest page boundary of the answer."""
    first = run(engine, prompt_of(50), 120)
    assert engine._device.crossings == (2 if engine.scheduler.memory.snapshots.total else 0)
    other = [*first.tokens[:150], 99, 98]
    cached = run(engine, other).completion.usage.cached_tokens
    assert cached == 128
    if not engine.scheduler.memory.prefixes._paged:
        assert run(engine, [*first.tokens[:100], 99]).completion.usage.cached_tokens in (50, 64)


def test_two_continuations_of_one_page_do_not_meet_each_others_pairs():
    """The last pair of a page depends on the token after it; the scripted device compares every pair before a round."""
    with scripted_engine(mixing(), scripted_manifest(snapshots=60, draft_source="mtp+copy", pages=40)) as engine:
        page = prompt_of(64)
        for _ in range(2):
            for first in range(70, 76):
                run(engine, [*page, *prompt_of(70, first)])
        assert engine.stats().prefix_hit_tokens > 6 * 64


def test_salts_share_neither_prefixes_nor_copied_history():
    with scripted_engine(
        mixing(), scripted_manifest(snapshots=12), history_drafts=True, context_drafts=False
    ) as engine:
        prompt = prompt_of(70)
        run(engine, prompt, 60, salt="a")
        other = run(engine, prompt, 60, salt="b")
        assert other.completion.usage.cached_tokens == 0
        within = other.completion.speculation.offered
        assert run(engine, prompt, 60).completion.usage.cached_tokens == 0
        mine = run(engine, prompt, 60, salt="a")
        assert mine.completion.usage.cached_tokens == 70
        assert mine.completion.speculation.accepted > 40 and mine.completion.speculation.offered > within


def test_nothing_beyond_a_host_stop_is_kept():
    """The stop completes inside an accepted block that crosses a page; the device has gone on."""
    text = "abcdefghijkl" * 4 + "abcdefgh<END>" + "abcdefghijkl" * 4
    dropped = 0
    for size in range(1, 8):
        prompt, manifest = list(b"zyxwvut"[:size]), scripted_manifest(snapshots=12)
        with scripted_engine(saying(text, size), manifest, fixed_width=8, history_drafts=True) as engine:
            engine.generate([65] * size, Sampling(max_tokens=100))  # what the next one copies, stop and all
            (handle,) = engine.submit(prompt, Sampling(max_tokens=100, stop="<END>"))
            while engine.step():
                engine.check()
            assert handle.completion.text == text[: text.index("<END>")]
            index = engine.scheduler.memory.prefixes
            held = [held for held in engine._device.held.values() if held.request == handle.id]
            dropped += len(held[0].consumed) >= 64 > len(handle.tokens)
            mine = [each for each in index._endpoints if each.node.tokens[:1] != (65,) and each.tail[:1] != (65,)]
            assert all(endpoint.consumed < len(handle.tokens) for endpoint in mine)
            kept = [endpoint for endpoint in mine if endpoint.consumed > len(prompt)]
            (after,) = engine.submit([*handle.tokens, 65], Sampling(max_tokens=1))
            while engine.step():
                engine.check()
            assert after.completion.usage.cached_tokens == max([len(prompt), *(each.consumed for each in kept)])
    assert dropped  # a boundary was crossed beyond the stop, and its row was written


def test_a_cancelled_request_leaves_only_what_had_settled(engine):
    (victim,) = engine.submit(prompt_of(70), Sampling(max_tokens=100))
    while victim.generated_tokens < 3:
        engine.step()
    engine.cancel(victim)
    while engine.step():
        engine.check()
    cached = run(engine, [*prompt_of(70), *victim.tokens[70:], 99]).completion.usage.cached_tokens
    assert cached in (64, 70)


def test_a_boundary_is_published_only_when_no_frame_names_its_row():
    manifest = scripted_manifest(snapshots=4, draft_source="mtp+copy")
    with scripted_engine(mixing(), manifest, context_drafts=False, history_drafts=True) as engine:
        memory, waited = engine.scheduler.memory, 0
        (handle,) = engine.submit(prompt_of(40), Sampling(max_tokens=150))
        while engine.step():
            engine.check()
            trail = handle.trail
            if trail.crossed:
                waited += 1
                assert any(trail.row in flight.launch.rows for flight in engine._in_flight)
                assert all(endpoint.snapshot != trail.row for endpoint in memory.prefixes._endpoints)
        assert waited >= 2 and engine._device.crossings == 2


def test_decoding_keeps_only_the_newest_boundary_nobody_began_from():
    with scripted_engine(mixing(), scripted_manifest(snapshots=12)) as engine:
        (handle,) = engine.submit(prompt_of(10), Sampling(max_tokens=220))
        left = True
        while left:
            left = engine.step()
            lengths = sorted(endpoint.consumed for endpoint in engine.scheduler.memory.prefixes._endpoints)
            assert sum(length % 64 == 0 for length in lengths) <= 1
        assert lengths == [10, 192, 229]
        assert handle.finished


def test_rows_in_use_are_never_evicted():
    """One row for everything: it goes to whoever needs it, and no one fails for want of it."""
    with scripted_engine(mixing(), scripted_manifest(snapshots=1)) as engine:
        handles = [engine.submit(prompt_of(60 + i, 65 + i), Sampling(max_tokens=40))[0] for i in range(6)]
        while engine.step():
            engine.check()
        for i, handle in enumerate(handles):
            assert list(handle.completion.token_ids) == reference(prompt_of(60 + i, 65 + i), 40)
        assert engine.stats().cached_prefixes == 1


def test_pages_of_cached_prefixes_make_room_least_recently_used_first():
    with scripted_engine(mixing(), scripted_manifest(snapshots=12, pages=7)) as engine:
        old, kept = prompt_of(100, 70), prompt_of(100, 71)
        run(engine, old)
        run(engine, kept)
        run(engine, prompt_of(200, 72), 30)  # needs more than what is free
        assert engine.stats().preemptions == 0
        assert run(engine, kept).completion.usage.cached_tokens == 100
        assert run(engine, old).completion.usage.cached_tokens < 100


@pytest.mark.parametrize("without", ["switch", "graphs"])
def test_without_a_prefix_cache_nothing_is_kept(without):
    sizes = {"snapshots": 12} if without == "switch" else {}
    with scripted_engine(mixing(), scripted_manifest(**sizes), prefix_cache=without != "switch") as engine:
        for _ in range(2):
            assert run(engine, prompt_of(100)).completion.usage.cached_tokens == 0
        assert {entry[0] for entry in engine._device.log} == {"init", "prefill", "resume", "speculative"}
        stats = engine.stats()
        assert (stats.free_pages, stats.cached_prefixes, stats.prefix_hit_tokens) == (stats.total_pages, 0, 0)


def test_requests_with_one_prompt_that_run_at_once_keep_it_once(engine):
    handles = [engine.submit(prompt_of(100), Sampling(max_tokens=20))[0] for _ in range(4)]
    while engine.step():
        engine.check()
    assert all(list(handle.completion.token_ids) == reference(prompt_of(100), 20) for handle in handles)
    rows = [endpoint.consumed for endpoint in engine.scheduler.memory.prefixes._endpoints]
    assert len(rows) == len(set(rows))


def test_statistics_say_what_is_held():
    with scripted_engine(mixing(), scripted_manifest(lanes=1, snapshots=4)) as engine:
        for _ in range(2):
            engine.submit(prompt_of(70), Sampling(max_tokens=30))
        engine.step()
        stats = engine.stats()
        assert (stats.waiting, stats.running, stats.total_slots, stats.free_slots) == (1, 1, 1, 0)
        assert stats.launches_in_flight == 2 and stats.free_pages < stats.total_pages
        while engine.step():
            pass
        stats = engine.stats()
        assert (stats.waiting, stats.running, stats.free_slots, stats.launches_in_flight) == (0, 0, 1, 0)
        assert stats.prefix_hit_tokens == 70 and stats.total_snapshots == 4
        assert stats.cached_prefixes == 4 - stats.free_snapshots > 0


def test_a_boundary_is_not_kept_when_the_round_behind_that_names_its_row_is_faulty(monkeypatch):
    manifest = scripted_manifest(snapshots=4, draft_source="mtp+copy")
    with scripted_engine(mixing(), manifest, context_drafts=False, history_drafts=True) as engine:
        (handle,) = engine.submit(prompt_of(40), Sampling(max_tokens=150))
        collect = engine._device.collect

        def faulty(frame):
            completion = collect(frame)
            if handle.trail.crossed:
                completion.records[handle.slot, Field.FLAGS] = Flag.FAULT
            return completion

        monkeypatch.setattr(engine._device, "collect", faulty)
        while engine.step():
            engine.check()
        assert handle.error is not None
        kept = {endpoint.consumed for endpoint in engine.scheduler.memory.prefixes._endpoints}
        assert kept == {16, 32, 40}  # of the prompt, which had settled
