"""Mutants of the runtime: each is one mistake a scheduler can make, and the simulation must notice every one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from flare.bench.simulation.scenario import scenario_of
from flare.bench.simulation.scripted.faults import Failure
from flare.bench.simulation.simulation import Simulation, simulate
from flare.contract.frames import Field, Scalar
from flare.runtime import scheduler, settling
from flare.runtime.copies import Copies
from flare.runtime.frames import reading, writing
from flare.runtime.launches import Launch
from flare.runtime.memory.memory import Memory
from flare.runtime.memory.radix import NONE
from flare.runtime.memory.slots import Slots
from flare.runtime.prompts import Prompts
from flare.runtime.requests import Request
from flare.runtime.scheduler import Scheduler

ROUNDS = 1_000
SEEDS = range(12)  # until one notices
Patch = pytest.MonkeyPatch


def a_generation_is_given_out_twice(patch: Patch) -> None:
    take = Slots.take
    patch.setattr(Slots, "take", lambda slots: (take(slots)[0], 1))


def a_slot_leaks(patch: Patch) -> None:
    patch.setattr(Slots, "release", lambda slots, slot: None)


def a_request_is_freed_while_a_launch_names_it(patch: Patch) -> None:
    patch.setattr(Scheduler, "named", lambda scheduler, request: False)


def a_request_is_parked_while_a_launch_names_it(patch: Patch) -> None:
    """As if nothing were queued whenever it is asked who may be parked."""
    reserve = Scheduler._reserve

    def reserve_at_once(self: Scheduler, request: Request) -> bool:
        holders = [*self._running, *self._prefilling]
        launches = [held.queued.launches for held in holders]
        for held in holders:
            held.queued.launches = 0
        reserved = reserve(self, request)
        for held, count in zip(holders, launches, strict=True):
            held.queued.launches = count
        return reserved

    patch.setattr(Scheduler, "_reserve", reserve_at_once)


def the_history_learns_drafts_before_they_are_verified(patch: Patch) -> None:
    offer = Copies.offer

    def offer_and_extend(copies: Copies, request: Request):
        offered = offer(copies, request)
        copies.extend(request, offered.tokens[:1])
        return offered

    patch.setattr(Copies, "offer", offer_and_extend)


def tokens_after_a_stop_string_are_kept(patch: Patch) -> None:
    patch.setattr(reading.Record, "cut", lambda record, kept: record)


def a_rejected_draft_is_followed_by_another_token(patch: Patch) -> None:
    read = settling.read_record

    def read_wrong(completion, request):
        record = read(completion, request)
        return record._replace(tokens=[*record.tokens, 0]) if record.offered > record.accepted else record

    patch.setattr(settling, "read_record", read_wrong)


def one_round_is_reserved_where_two_are_queued(patch: Patch) -> None:
    extend = Memory.extend
    patch.setattr(
        Memory, "extend", lambda memory, request, tokens: extend(memory, request, tokens - request.queued.tokens - 8)
    )


def a_grown_page_table_is_not_written(patch: Patch) -> None:
    add = Memory._add

    def add_silently(memory: Memory, request: Request, pages: tuple[int, ...]) -> None:
        add(memory, request, pages)
        request.epoch -= bool(request.prefilled_tokens)

    patch.setattr(Memory, "_add", add_silently)


def the_pending_token_is_published(patch: Patch) -> None:
    publish = Memory.publish
    patch.setattr(Memory, "publish", lambda memory, request, consumed, row: publish(memory, request, consumed + 1, row))


def a_boundary_is_published_that_was_not_crossed(patch: Patch) -> None:
    settle = scheduler.settle_boundary

    def settle_always(memory: Memory, request: Request) -> None:
        passed = request.trail.row != NONE and request.trail.boundary < len(request.tokens) + 8
        request.trail.crossed = request.trail.crossed or passed
        settle(memory, request)

    patch.setattr(scheduler, "settle_boundary", settle_always)


def rounds_name_another_snapshot_row(patch: Patch) -> None:
    name = writing.FrameWriter._name_rows

    def name_wrong(writer, arguments, launch: Launch) -> None:
        total = writer._extent.snapshots
        moved = tuple((row + 1) % total if row != NONE else row for row in launch.rows)
        name(writer, arguments, replace(launch, rows=moved) if launch.is_round else launch)

    patch.setattr(writing.FrameWriter, "_name_rows", name_wrong)


def the_copied_page_is_forgotten(patch: Patch) -> None:
    write = writing.write_restore

    def write_without_copy(arguments, launch: Launch, null_page: int) -> None:
        write(arguments, launch, null_page)
        arguments.scalars[Scalar.COPY_FROM] = arguments.scalars[Scalar.COPY_TO] = null_page

    patch.setattr(writing, "write_restore", write_without_copy)


def what_a_restore_reads_is_let_go_before_it_ran(patch: Patch) -> None:
    restore = Prompts._restore

    def restore_unpinned(prompts: Prompts, request: Request) -> Launch:
        hit = request.trail.hit
        launch = restore(prompts, request)
        prompts._memory.drop_hit(request)
        request.trail.hit = hit
        return launch

    patch.setattr(Prompts, "_restore", restore_unpinned)


def tenants_share_prefixes(patch: Patch) -> None:
    patch.setattr(Request, "salt", property(lambda request: ""))


def a_failed_launch_is_published(patch: Patch) -> None:
    landed = Scheduler.landed

    def landed_soundly(self: Scheduler, launch: Launch, sound: bool = True) -> None:
        errors = [(request.error, request.cancelled) for request in launch.requests]
        for request in launch.requests:
            request.error, request.cancelled = None, False
        landed(self, launch)
        for request, (error, cancelled) in zip(launch.requests, errors, strict=True):
            request.error, request.cancelled = error, cancelled

    patch.setattr(Scheduler, "landed", landed_soundly)


def a_parked_request_forgets_its_events(patch: Patch) -> None:
    write = writing.write_admission

    def write_without_events(arguments, request: Request) -> None:
        write(arguments, request)
        arguments.scalars[Scalar.ORDINARY_EVENTS] = arguments.scalars[Scalar.VERIFY_EVENTS] = 0

    patch.setattr(writing, "write_admission", write_without_events)


def the_youngest_run_first(patch: Patch) -> None:
    launch_round = Scheduler._round

    def round_of_the_youngest(self: Scheduler) -> Launch | None:
        self._running.sort(key=lambda request: -request.order)
        return launch_round(self)

    patch.setattr(Scheduler, "_round", round_of_the_youngest)


MUTANTS: list[Callable[[Patch], None]] = [
    a_generation_is_given_out_twice,
    a_slot_leaks,
    a_request_is_freed_while_a_launch_names_it,
    a_request_is_parked_while_a_launch_names_it,
    the_history_learns_drafts_before_they_are_verified,
    tokens_after_a_stop_string_are_kept,
    a_rejected_draft_is_followed_by_another_token,
    one_round_is_reserved_where_two_are_queued,
    a_grown_page_table_is_not_written,
    the_pending_token_is_published,
    a_boundary_is_published_that_was_not_crossed,
    rounds_name_another_snapshot_row,
    the_copied_page_is_forgotten,
    what_a_restore_reads_is_let_go_before_it_ran,
    tenants_share_prefixes,
    a_failed_launch_is_published,
    a_parked_request_forgets_its_events,
    the_youngest_run_first,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulation_notices_when(mutant, monkeypatch):
    mutant(monkeypatch)
    results = (simulate(scenario_of(seed, faults=True), ROUNDS) for seed in SEEDS)
    error = next((result.error for result in results if result.error), None)
    assert error is not None, "no seed noticed"
    assert "AttributeError" not in error and "TypeError" not in error, "the mutant itself is broken"


def stale_record_run() -> None:
    """A few quiet rounds, then one whose record is that of the slot's previous holder."""
    simulation = Simulation(scenario_of(3, faults=False))
    for _ in range(30):
        simulation.arrive()
        simulation.step()
    while not simulation.device.queued_rounds:
        simulation.step()
    simulation.device.armed.failure = Failure.STALE
    for _ in range(30):
        simulation.arrive()
        simulation.step()


def test_a_record_of_another_generation_is_refused():
    with pytest.raises(RuntimeError, match="the host expects"):
        stale_record_run()


def test_without_the_generation_check_a_stale_record_becomes_wrong_tokens(monkeypatch):
    read = reading.read_record

    def read_anything(completion, request):
        completion.records[request.slot, Field.GENERATION] = request.generation
        return read(completion, request)

    monkeypatch.setattr(settling, "read_record", read_anything)
    with pytest.raises(AssertionError, match="token"):
        stale_record_run()
