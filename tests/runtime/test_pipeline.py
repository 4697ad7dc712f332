"""Two launches in flight: what may overlap, what waits, what an outdated result may not touch, whose time is whose."""

from types import SimpleNamespace

import pytest

from flare.runtime.pipeline import Pipeline
from flare.runtime.requests import State
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import EOS, mixing, saying, scripted_engine
from tests.runtime.scripted_device import scripted_manifest
from tests.runtime.test_engine_batches import assert_free, prompt_of, reference


def learned(**sizes):
    """A catalog whose drafter proposes by itself, so that copies may be offered behind a queued round."""
    return scripted_manifest(draft_source="mtp+copy", **sizes)


def run_down(engine, seen=lambda: None):
    while engine.step():
        engine.check()
        seen()


@pytest.mark.parametrize("drafts", [0, 7])
def test_two_rounds_of_the_same_requests_are_queued(drafts):
    with scripted_engine(mixing(), context_drafts=False, history_drafts=True, mtp_draft_tokens=drafts) as engine:
        handles = [engine.submit(prompt_of(5, first), Sampling(max_tokens=40))[0] for first in (65, 66)]
        most = []
        run_down(engine, lambda: most.append(max(handle.queued.rounds for handle in handles)))
        assert engine._device.most_queued == 2 and max(most) == 2
        assert [list(handle.completion.token_ids) for handle in handles] == [
            reference(prompt_of(5, first), 40) for first in (65, 66)
        ]
        assert_free(engine)


def test_a_round_is_queued_behind_the_chunk_that_samples_the_first_token():
    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        engine.submit(prompt_of(5), Sampling(max_tokens=40))
        engine.step()  # init settles
        assert [flight.launch.graph.kind for flight in engine._in_flight] == ["prefill", "decode"]
        run_down(engine)


@pytest.mark.parametrize("wish", [{"stop": "never"}, {"constrained": True}])
def test_what_waits_for_the_host_has_one_round_in_flight(wish):
    constrained = wish.pop("constrained", False)
    with scripted_engine(mixing(), learned()) as engine:
        (handle,) = engine.submit(prompt_of(5), Sampling(max_tokens=40, **wish))
        if constrained:
            free = {"mask": lambda rows, drafts=(): rows.fill(-1), "drafts": lambda copied, limit: list(copied)[:limit]}
            handle.constraint = SimpleNamespace(
                **free, commit=lambda tokens, ended: len(tokens), finished=False, fault=None, copied_drafts=99
            )
            engine._device._check_lanes = lambda pair: setattr(pair, "slots", frozenset({handle.slot}))
        most = []
        run_down(engine, lambda: most.append(handle.queued.samplings))
        assert max(most) == 1
        assert list(handle.completion.token_ids) == reference(prompt_of(5), 40)


def test_serial_requests_share_their_rounds_instead_of_taking_turns():
    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        for first in (65, 66, 67):
            engine.submit(prompt_of(5, first), Sampling(max_tokens=40, stop="never"))
        run_down(engine)
        rounds = [entry[3] for entry in engine._device.log if entry[0] == "decode"]
        assert sum(lanes == 3 for lanes in rounds) > 30 and len(rounds) < 50


def test_a_copy_behind_a_queued_round_is_the_rest_of_one_anchored_continuation():
    """The text repeats itself, so all of a copy is accepted and the second round goes on where the first ends."""
    with scripted_engine(saying("abcdefghijkl" * 20, 5), learned(), fixed_width=6) as engine:
        offered = []
        submit = engine._in_flight.submit

        def spying(launch):
            if launch.offers and launch.offers[0].tokens:
                offered.append((launch.requests[0].queued.rounds, len(launch.offers[0].tokens), launch.ceilings[0]))
            submit(launch)

        engine._in_flight.submit = spying
        (handle,) = engine.submit(list(b"zyxwv"), Sampling(max_tokens=120))
        run_down(engine)
        behind = [entry for entry in offered if entry[0] == 1]
        assert behind and all(tokens > 6 and ceiling == 5 for _, tokens, ceiling in behind)
        second = [row for row in handle.rounds if row.offered == 5]
        assert len(second) > len(offered) // 2 and all(row.accepted == 5 for row in second)
        assert handle.completion.text == ("abcdefghijkl" * 20)[:120]


def test_without_a_learned_drafter_copies_are_offered_one_round_at_a_time():
    with scripted_engine(saying("abcdefghijkl" * 20, 5), fixed_width=8) as engine:
        (handle,) = engine.submit(list(b"zyxwv"), Sampling(max_tokens=200))
        wide_behind = []
        run_down(engine, lambda: wide_behind.append(handle.queued.rounds > 1 and handle.queued.tokens > 2))
        assert not any(wide_behind) and engine._device.most_queued == 2
        late = handle.rounds[len(handle.rounds) // 2 :]
        assert all(row.accepted == row.offered == 7 for row in late[:-2])


def test_a_lane_that_ended_is_dead_in_the_round_behind():
    with scripted_engine(saying("abcde", 5), mtp_draft_tokens=0) as engine:
        done = engine.generate(prompt_of(5), Sampling(max_tokens=40))
        assert (done.text, done.finish_reason, done.token_ids[-1]) == ("abcde", "stop", EOS)
        assert len(done.rounds) == 5
        run_down(engine)
        assert engine._device.dead == 1  # and its record said nothing was emitted
        assert_free(engine)


def test_no_round_is_queued_that_is_known_to_come_too_late():
    with scripted_engine(mixing(), mtp_draft_tokens=0) as engine:
        engine.generate(prompt_of(5), Sampling(max_tokens=7, ignore_eos=True))
        run_down(engine)
        assert engine._device.dead == 0


@pytest.mark.parametrize("drafts", [0, 7])
@pytest.mark.parametrize("steps", range(1, 30))
def test_a_cancel_with_two_rounds_queued_drops_both_results(steps, drafts):
    with scripted_engine(mixing(), learned(slots=1, lanes=1), mtp_draft_tokens=drafts, history_drafts=True) as engine:
        (victim,) = engine.submit(prompt_of(20), Sampling(max_tokens=150))
        (heir,) = engine.submit(prompt_of(6, 80), Sampling(max_tokens=30))
        for _ in range(steps):
            engine.step()
        named, known = victim.queued.launches, victim.generated_tokens
        engine.cancel(victim)
        assert victim.finished == (named == 0)
        for _ in range(named):
            assert victim.state is State.LEAVING and heir.state is State.WAITING  # the slot is not given away
            engine.step()
            engine.check()
        assert victim.finished and victim.generated_tokens == known
        run_down(engine)
        assert list(heir.completion.token_ids) == reference(prompt_of(6, 80), 30)
        history = engine._copies._history
        assert history is not None and len(history) == known + 30
        assert_free(engine)


def test_a_slot_is_reused_with_another_generation():
    with scripted_engine(mixing(), scripted_manifest(lanes=1)) as engine:
        first = engine.submit(prompt_of(5), Sampling(max_tokens=5))[0]
        second = engine.submit(prompt_of(6), Sampling(max_tokens=5))[0]
        run_down(engine)
        assert first.slot == second.slot and first.generation < second.generation


@pytest.mark.parametrize("failing", range(1, 14))
def test_a_failed_launch_takes_the_round_behind_it_along_and_nothing_else(failing, monkeypatch):
    engine = scripted_engine(mixing(), scripted_manifest(lanes=2, snapshots=4), mtp_draft_tokens=0)
    collect, calls = engine._device.collect, iter(range(1, 1000))

    def broken(frame):
        completion = collect(frame)
        if next(calls) == failing:
            raise ValueError("broken")
        return completion

    monkeypatch.setattr(engine._device, "collect", broken)
    handles = [engine.submit(prompt_of(60 + length), Sampling(max_tokens=20))[0] for length in (0, 1, 2)]
    for _ in range(300):
        try:
            engine.step()
        except ValueError:
            assert failing
        engine.check()
    lost = [handle for handle in handles if handle.error is not None]
    assert 1 <= len(lost) <= 2 and engine.idle
    for handle, length in zip(handles, (0, 1, 2), strict=True):
        if handle not in lost:
            assert list(handle.completion.token_ids) == reference(prompt_of(60 + length), 20)
    engine.close()
    assert_free_but_cached(engine)


def assert_free_but_cached(engine):
    memory = engine.scheduler.memory
    assert memory.slots.free == memory.slots.total
    while memory.prefixes.evict():
        pass
    assert memory.pages.free == memory.pages.total and memory.snapshots.free == memory.snapshots.total


class Timed:
    """A device that is done with its launches at given moments; waiting for one moves the clock."""

    def __init__(self, done_s):
        self.now_s = 0.0
        self.done_s = list(done_s)
        self.frames = {}

    def arguments(self, frame):
        return None

    def submit(self, graph, frame):
        self.frames[frame] = self.done_s.pop(0)

    def poll(self, frame):
        return self.frames[frame] <= self.now_s

    def collect(self, frame):
        self.now_s = max(self.now_s, self.frames[frame])

    def release(self, frame):
        del self.frames[frame]


@pytest.fixture
def timed(monkeypatch):
    def make(*done_s):
        device = Timed(done_s)
        pipeline = Pipeline(device, scripted_manifest().extent, lambda: device.now_s)
        for writer in pipeline._writers:
            monkeypatch.setattr(writer, "write", lambda arguments, launch: None)
        return device, pipeline

    launch = SimpleNamespace(graph=SimpleNamespace(id=0), requests=(), depart=lambda: None, is_round=True, samples=True)
    return make, launch


def test_the_second_rounds_time_begins_where_the_first_ends(timed):
    make, launch = timed
    _, pipeline = make(5.0, 8.0, 9.0)
    pipeline.submit(launch)
    pipeline.submit(launch)
    assert pipeline.collect().seconds == 5.0
    pipeline.release()
    pipeline.submit(launch)
    assert pipeline.collect().seconds == 3.0
    pipeline.release()
    assert pipeline.collect().seconds == 1.0


def test_a_completion_that_waited_for_the_host_hides_the_next_rounds_begin(timed):
    make, launch = timed
    device, pipeline = make(5.0, 8.0, 12.0, 20.0)
    pipeline.submit(launch)
    pipeline.submit(launch)
    device.now_s = 7.0  # the host was busy, the first was done at 5
    assert pipeline.collect().seconds == 7.0
    pipeline.release()
    pipeline.submit(launch)
    assert pipeline.collect().seconds is None  # it took 3 seconds, of which the host saw one
    pipeline.release()
    assert pipeline.collect().seconds == 4.0
    pipeline.release()
    device.now_s = 16.0
    pipeline.submit(launch)
    assert pipeline.collect().seconds == 4.0  # nothing was queued before it: its time begins with its submission


def test_a_host_that_is_always_late_pays_its_own_time_for_each_round(timed):
    make, launch = timed
    device, pipeline = make(1.0, 2.0, 3.0, 4.0)
    pipeline.submit(launch)
    pipeline.submit(launch)
    device.now_s = 4.0
    pipeline.collect()
    pipeline.release()
    pipeline.submit(launch)
    device.now_s = 8.0
    assert pipeline.collect().seconds == 4.0


def test_the_end_of_a_request_is_not_kept_when_the_round_before_its_snapshot_fails(monkeypatch):
    """It finished in the first of two queued rounds; its snapshot is queued behind the second, which fails."""
    manifest = scripted_manifest(lanes=2, snapshots=8)
    engine = scripted_engine(saying("abcde", 5), manifest, mtp_draft_tokens=0)
    collect, failed = engine._device.collect, []

    def broken(frame):
        completion = collect(frame)
        kinds = [flight.launch.graph.kind for flight in engine._in_flight]
        if kinds == ["decode", "snapshot"]:
            failed.append(frame)
            raise ValueError("broken")
        return completion

    monkeypatch.setattr(engine._device, "collect", broken)
    (handle,) = engine.submit(prompt_of(5), Sampling(max_tokens=40))
    with pytest.raises(ValueError, match="broken"):
        run_down(engine)
    run_down(engine)
    assert failed and handle.completion.text == "abcde"
    kept = [endpoint.consumed for endpoint in engine.scheduler.memory.prefixes._endpoints]
    assert kept == [5]  # its prompt, which had settled before
    engine.close()
    assert_free_but_cached(engine)
