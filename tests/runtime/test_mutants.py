"""Broken runtimes must not pass: each mutant breaks one rule, and the tests named beside it must turn red."""

import pytest

from flare.runtime import cohorts, scheduler
from flare.runtime.copies import Copies
from flare.runtime.engine import Engine
from flare.runtime.frames import reading, writing
from flare.runtime.memory import memory
from flare.runtime.memory.prefix import Prefixes
from flare.runtime.memory.slots import Slots
from flare.runtime.memory.snapshots import Snapshots
from flare.runtime.pipeline import Pipeline
from flare.runtime.requests import Request
from tests.runtime import test_engine_batches as batches
from tests.runtime import test_pipeline as pipeline
from tests.runtime import test_preemption as preemption
from tests.runtime import test_prefix_cache as prefixes
from tests.runtime.scripted_core import mixing, scripted_engine
from tests.runtime.scripted_device import scripted_manifest


def red(test, *arguments) -> None:
    """The test fails, in whatever way."""
    with pytest.raises((Exception, pytest.fail.Exception)):
        test(*arguments)


def cancels(drafts=0, moments=range(4, 9)) -> None:
    for steps in moments:
        pipeline.test_a_cancel_with_two_rounds_queued_drops_both_results(steps, drafts)


def absorbing() -> Engine:
    return scripted_engine(mixing(), scripted_manifest(snapshots=12, draft_source="mtp+copy"))


def test_reusing_a_generation_is_caught(monkeypatch):
    def take(self):
        return self._free.pop(), 1

    monkeypatch.setattr(Slots, "take", take)
    red(pipeline.test_a_slot_is_reused_with_another_generation)


def test_skipping_the_check_of_a_records_generation_is_caught(monkeypatch):
    read = reading.read_record

    def trusting(completion, request):
        completion.records[request.slot, reading.Field.GENERATION] = request.generation
        return read(completion, request)

    monkeypatch.setattr("flare.runtime.settling.read_record", trusting)
    monkeypatch.setattr("flare.runtime.settling.read_fault", lambda completion, request: False)
    with pytest.MonkeyPatch.context() as patch:
        red(batches.test_a_record_that_disagrees_with_the_host_is_a_bug, "GENERATION", patch)


def test_freeing_what_a_queued_launch_names_is_caught(monkeypatch):
    monkeypatch.setattr(scheduler.Scheduler, "named", lambda self, request: False)
    red(cancels)


def test_letting_go_of_a_snapshot_before_its_frames_is_caught(monkeypatch):
    monkeypatch.setattr(memory.Memory, "_pin", lambda self, hit: self.pages.share(hit.shared))
    monkeypatch.setattr(memory.Memory, "_unpin", lambda self, hit: None)
    red(prefixes.test_the_same_prompt_again_runs_none_or_one_of_its_chunks, absorbing(), 70)


def test_evicting_a_row_in_use_is_caught(monkeypatch):
    def careless(self):
        for endpoint in self._endpoints:
            self._snapshots._references[endpoint.snapshot] = 1
            self.drop(endpoint)
            return True
        return False

    monkeypatch.setattr(Prefixes, "evict_snapshot", careless)
    monkeypatch.setattr(Snapshots, "share", lambda self, snapshot: None)
    red(prefixes.test_rows_in_use_are_never_evicted)


def test_publishing_a_boundary_that_a_frame_still_names_is_caught(monkeypatch):
    settle = scheduler.settle_boundary

    def eager(held, request):
        references = held.snapshots.references
        held.snapshots.references = lambda row: 1
        settle(held, request)
        held.snapshots.references = references

    monkeypatch.setattr(scheduler, "settle_boundary", eager)
    red(prefixes.test_a_boundary_is_published_only_when_no_frame_names_its_row)


def test_publishing_the_pending_token_is_caught(monkeypatch):
    end = scheduler.Scheduler._end_snapshot

    def one_more(self, request):
        launch = end(self, request)
        object.__setattr__(launch, "start", launch.start + 1)
        return launch

    monkeypatch.setattr(scheduler.Scheduler, "_end_snapshot", one_more)
    red(prefixes.test_the_next_turn_begins_where_the_last_one_ended, absorbing(), 60)


def test_publishing_beyond_a_host_stop_is_caught(monkeypatch):
    def trusting(request, consumed):
        request.trail.crossed = True

    monkeypatch.setattr("flare.runtime.settling.note_crossing", trusting)
    red(prefixes.test_nothing_beyond_a_host_stop_is_kept)


def test_extending_the_ring_at_submission_is_caught(monkeypatch):
    submit = Pipeline.submit

    def hasty(self, launch):
        submit(self, launch)
        for request, offer in zip(launch.requests, launch.offers, strict=False):
            copies.extend(request, offer.tokens[:1])

    copies = None
    opened = Copies.open

    def opening(self, request):
        nonlocal copies
        copies = self
        opened(self, request)

    monkeypatch.setattr(Copies, "open", opening)
    monkeypatch.setattr(Pipeline, "submit", hasty)
    red(cancels, 7, range(4, 30))


def test_two_rounds_of_a_request_that_waits_for_the_host_are_caught(monkeypatch):
    monkeypatch.setattr(Request, "serial", property(lambda self: False))
    red(pipeline.test_what_waits_for_the_host_has_one_round_in_flight, {"stop": "never"})


def test_serving_part_of_a_cohort_while_the_rest_returns_is_caught(monkeypatch):
    def eager(self, running):
        return [request for request in running if not request.queued.samplings][: self._catalog.lanes]

    monkeypatch.setattr(cohorts.Cohorts, "ready", eager)
    red(pipeline.test_two_rounds_of_the_same_requests_are_queued, 0)


def test_a_resumed_request_that_draws_again_is_caught(monkeypatch):
    write = writing.write_admission

    def forgetful(arguments, request):
        write(arguments, request)
        arguments.scalars[writing.Scalar.ORDINARY_EVENTS] = 0

    monkeypatch.setattr(writing, "write_admission", forgetful)
    red(preemption.test_parked_requests_go_on_with_the_same_tokens_and_counters, {}, 0)


def test_sharing_the_last_page_of_a_prefix_that_pairs_reach_into_is_caught(monkeypatch):
    begin = Prefixes.__init__

    def unaware(self, pages, snapshots, paged, absorbing):
        begin(self, pages, snapshots, paged, absorbing=False)

    monkeypatch.setattr(Prefixes, "__init__", unaware)
    red(prefixes.test_two_continuations_of_one_page_do_not_meet_each_others_pairs)


def test_growing_too_late_is_caught(monkeypatch):
    monkeypatch.setattr(scheduler.Scheduler, "_reserve", lambda self, request: True)
    red(preemption.test_the_youngest_gives_way_and_the_oldest_ends_first)


def test_parking_a_request_that_a_launch_names_is_caught(monkeypatch):
    def ruthless(self, request):
        longest = len(request.tokens) - 1 + request.queued.tokens + self._extent.width
        while not self.memory.extend(request, longest):
            victim = max((*self._running, *self._prefilling), key=lambda held: held.order)
            self._park(victim)
            if victim is request:
                return False
        return True

    monkeypatch.setattr(scheduler.Scheduler, "_reserve", ruthless)
    red(preemption.test_the_youngest_gives_way_and_the_oldest_ends_first)


def test_publishing_more_than_a_chunk_consumed_is_caught(monkeypatch):
    def trusting(self, launch, sound):
        self.memory.publish(launch.requests[0], launch.start + launch.count + 1, launch.row(0))

    monkeypatch.setattr(scheduler.Scheduler, "_publish", trusting)
    red(prefixes.test_the_same_prompt_again_runs_none_or_one_of_its_chunks, absorbing(), 70)
