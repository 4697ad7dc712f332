"""Broken snapshots: each must fail the very test that guards what it breaks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from flare.contract.frames import Scalar
from flare.layers.ple import PerLayerEmbedding
from flare.ops.requests import cpu
from flare.ops.short_conv import Boundary
from flare.rounds import boundaries, decode, prefill, snapshot, speculative
from flare.rounds.requests import RequestTable
from tests.rounds import harness, test_boundaries, test_snapshots

Patch = Callable[[pytest.MonkeyPatch], None]


def crossing() -> None:
    test_boundaries.check_crossing("qwen38", 3, 4)


def crossing_of_pages() -> None:
    test_boundaries.check_crossing("dense", 3, 4)


def one_token() -> None:
    test_boundaries.test_a_round_of_one_token_ends_on_the_boundary("dense", "decode")


def lanes() -> None:
    test_boundaries.test_lanes_of_one_round_cross_each_on_its_own("dense")


def every_byte() -> None:
    test_snapshots.test_a_restored_slot_has_every_declared_byte_of_the_one_that_was_kept("qwen38")


def prefix_of_a_prompt() -> None:
    test_snapshots.test_a_prompt_that_begins_with_a_kept_prefix_goes_on_like_a_cold_one("qwen38", 67, "snapshot")


def end_of_a_chunk() -> None:
    test_snapshots.test_a_prompt_that_begins_with_a_kept_prefix_goes_on_like_a_cold_one("qwen38", 64, "chunk")


def partial_page() -> None:
    test_snapshots.test_a_prompt_that_begins_with_a_kept_prefix_goes_on_like_a_cold_one("dense", 65, "snapshot")


def whole_prompt() -> None:
    test_snapshots.test_a_whole_prompt_that_was_kept_samples_its_first_token_from_the_saved_output(
        "dense", 64, test_snapshots.WARM
    )


def parked() -> None:
    test_snapshots.test_a_restore_that_does_not_sample_leaves_the_pending_token_and_the_events_of_a_parked_request()


def other_generation() -> None:
    test_snapshots.test_another_generation_keeps_and_restores_nothing("keep")


def crossings(patch: pytest.MonkeyPatch, change: Callable) -> None:
    """Replace what rounds find of a crossing."""
    real = boundaries.find_crossing

    def find(model, rows, emitted, arguments):
        return change(real(model, rows, emitted, arguments), emitted)

    patch.setattr(speculative, "find_crossing", find)
    patch.setattr(decode, "find_crossing", find)


def state_one_row_early(patch: pytest.MonkeyPatch) -> None:
    def change(found, _):
        return replace(found, boundary=replace(found.boundary, counts=(found.boundary.counts - 1).clamp_min(0)))

    crossings(patch, change)


def state_one_row_late(patch: pytest.MonkeyPatch) -> None:
    def change(found, emitted):
        later = torch.minimum(found.boundary.counts + found.chosen, emitted)
        return replace(found, boundary=replace(found.boundary, counts=later))

    crossings(patch, change)


def state_after_the_round(patch: pytest.MonkeyPatch) -> None:
    def change(found, emitted):
        return replace(found, boundary=replace(found.boundary, counts=emitted.where(found.chosen, 0)))

    crossings(patch, change)


def every_lane_crosses_with_a_row(patch: pytest.MonkeyPatch) -> None:
    real = boundaries.find_crossing

    def find(model, rows, emitted, arguments):
        found = real(model, rows, emitted, arguments)
        assert found is not None
        row = arguments.boundary_slots[: len(rows.slots)]
        chosen = (row > 0) & (emitted > 0)
        return replace(found, chosen=chosen, boundary=Boundary(found.boundary.counts, row.where(chosen, 4)))

    patch.setattr(speculative, "find_crossing", find)


def only_beyond_the_boundary(patch: pytest.MonkeyPatch) -> None:
    """P < N + t instead of P ≤ N + t."""
    real = boundaries.find_crossing
    patch.setattr(
        decode, "find_crossing", lambda model, rows, emitted, frame: real(model, rows, (emitted - 1).clamp(0), frame)
    )


def rings_not_copied(patch: pytest.MonkeyPatch) -> None:
    real = boundaries.keep_crossing

    def keep(model, rows, verified, found):
        real(replace(model, prefix=replace(model.prefix, rings=())), rows, verified, found)

    patch.setattr(speculative, "keep_crossing", keep)


def tails_of_the_last_row(patch: pytest.MonkeyPatch) -> None:
    """Feedback and output of row t − 1 instead of row P − 1 − N."""
    real = boundaries.keep_crossing

    def keep(model, rows, verified, found):
        first = torch.arange(len(found.last)) * rows.tokens.shape[1]
        real(model, rows, verified, replace(found, last=first + 4))  # what the guards' rounds emit, less one

    patch.setattr(speculative, "keep_crossing", keep)


def layer_ignores_the_boundary(patch: pytest.MonkeyPatch) -> None:
    real = PerLayerEmbedding.commit
    patch.setattr(PerLayerEmbedding, "commit", lambda self, rows, emitted, boundary=None: real(self, rows, emitted))


def page_not_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshot, "_copy_page", lambda model, lanes, arguments: None)


def page_shared(patch: pytest.MonkeyPatch) -> None:
    """Only the first paged tensor is copied."""
    real = snapshot._copy_page

    def copy(model, lanes, arguments):
        real(replace(model, prefix=replace(model.prefix, pages=model.prefix.pages[:1])), lanes, arguments)

    patch.setattr(snapshot, "_copy_page", copy)


def only_rings_restored(patch: pytest.MonkeyPatch) -> None:
    real = snapshot.restore

    def restore(model, graph, frame):
        real(replace(model, prefix=replace(model.prefix, rows=model.prefix.rings)), graph, frame)

    patch.setattr(harness, "restore", restore)


def chunk_ends_without_a_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefill, "keep_end", lambda model, lanes, arguments: None)


def kept_before_the_tail_moves(patch: pytest.MonkeyPatch) -> None:
    real_commit, real_keep = RequestTable.commit, boundaries.keep_end
    late: list = []

    def commit(self, *moved):
        if late:
            real_keep(*late.pop())
        real_commit(self, *moved)

    real_consume = prefill._consume

    def consume(model, graph, frame):
        chunk = real_consume(model, graph, frame)
        late.append((model, chunk.lanes, frame.arguments))
        return chunk

    patch.setattr(prefill, "_consume", consume)
    patch.setattr(RequestTable, "commit", commit)
    patch.setattr(prefill, "keep_end", lambda model, lanes, arguments: None)


def output_not_saved(patch: pytest.MonkeyPatch) -> None:
    real = RequestTable.commit

    def commit(self, lanes, consumed, hidden, emission, *spent):
        saved = self.output.clone()
        real(self, lanes, consumed, hidden, emission, *spent)
        self.output.copy_(saved)

    patch.setattr(RequestTable, "commit", commit)


def always_samples(patch: pytest.MonkeyPatch) -> None:
    real = snapshot.sample_first
    patch.setattr(
        snapshot,
        "sample_first",
        lambda model, frame, lanes, output, sampled: real(model, frame, lanes, output, lanes.live),
    )


def samples_from_another_domain(patch: pytest.MonkeyPatch) -> None:
    real = snapshot.sample_first

    def sample(model, frame, lanes, output, sampled):
        return real(model, frame, replace(lanes, offsets=lanes.offsets.roll(1, 0)), output, sampled)

    patch.setattr(snapshot, "sample_first", sample)


def one_token_less_consumed(patch: pytest.MonkeyPatch) -> None:
    real = snapshot._scalar

    def scalar(arguments, place):
        return real(arguments, place) - int(place == Scalar.CONSUMED)

    patch.setattr(snapshot, "_scalar", scalar)


def keeps_for_any_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpu, "live_lanes", lambda table, arguments, count, ended: torch.ones(count, dtype=torch.bool))


@pytest.mark.parametrize(
    ("mutant", "guard"),
    [
        (state_one_row_early, crossing),
        (state_one_row_late, crossing),
        (state_after_the_round, crossing),
        (every_lane_crosses_with_a_row, lanes),
        (only_beyond_the_boundary, one_token),
        (rings_not_copied, crossing),
        (tails_of_the_last_row, crossing),
        (tails_of_the_last_row, crossing_of_pages),
        (layer_ignores_the_boundary, crossing),
        (page_not_copied, crossing),
        (page_not_copied, partial_page),
        (page_shared, partial_page),
        (only_rings_restored, every_byte),
        (only_rings_restored, prefix_of_a_prompt),
        (chunk_ends_without_a_row, end_of_a_chunk),
        (kept_before_the_tail_moves, end_of_a_chunk),
        (output_not_saved, whole_prompt),
        (always_samples, parked),
        (samples_from_another_domain, whole_prompt),
        (one_token_less_consumed, every_byte),
        (keeps_for_any_generation, other_generation),
    ],
    ids=lambda function: function.__name__,
)
def test_the_mutant_is_caught(monkeypatch, mutant: Patch, guard: Callable[[], None]):
    guard()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        guard()
