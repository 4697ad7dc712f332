"""What an engine is doing right now, in numbers."""

from dataclasses import dataclass

from flare.runtime.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One look at a running engine.

    Attributes:
        waiting: requests without a slot, parked ones included; running: with one.
        free_snapshots: rows nobody refers to; cached_prefixes: points a prompt could begin from.
        launches_in_flight: submitted and not settled.
        preemptions: requests parked so far; prefix_hit_tokens: prompt tokens restored instead of run so far.
    """

    waiting: int
    running: int
    total_pages: int
    free_pages: int
    total_slots: int
    free_slots: int
    total_snapshots: int
    free_snapshots: int
    cached_prefixes: int
    launches_in_flight: int
    preemptions: int
    prefix_hit_tokens: int


def stats_of(scheduler: Scheduler, launches_in_flight: int) -> EngineStats:
    """Read the counters; nothing is walked."""
    memory = scheduler.memory
    return EngineStats(
        waiting=scheduler.waiting,
        running=scheduler.running,
        total_pages=memory.pages.total,
        free_pages=memory.pages.free,
        total_slots=memory.slots.total,
        free_slots=memory.slots.free,
        total_snapshots=memory.snapshots.total,
        free_snapshots=memory.snapshots.free,
        cached_prefixes=len(memory.prefixes) if memory.prefixes is not None else 0,
        launches_in_flight=launches_in_flight,
        preemptions=scheduler.preemptions,
        prefix_hit_tokens=memory.hit_tokens,
    )
