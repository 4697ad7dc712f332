"""Broken rounds: each must fail the very test that guards what it breaks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from flare.layers.rows import Hidden
from flare.ops.requests import cpu
from flare.rounds.requests import RequestTable
from tests.rounds import harness, test_speculative

Patch = Callable[[pytest.MonkeyPatch], None]


def every_count() -> None:
    test_speculative.test_every_accepted_and_emitted_count_leaves_the_state_of_single_steps(4, "budget")


def stop_inside_block() -> None:
    test_speculative.test_a_stop_inside_an_accepted_block_ends_there(1)


def stale_copy() -> None:
    test_speculative.test_a_continuation_that_disagrees_with_what_was_committed_offers_nothing(3)


def dead_lane() -> None:
    test_speculative.test_a_dead_lane_emits_nothing_and_says_so({"stop_ids": (test_speculative.TRUTH[0][1],)})


def stale_generation() -> None:
    test_speculative.test_another_generation_leaves_the_slot_untouched()


def accept_everything(patch: pytest.MonkeyPatch) -> None:
    real = harness.bench

    def broken(*args, **kwargs):
        core = real(*args, **kwargs)
        chain = core.model.ops.chain_verify

        def verify(p, law, drafts, seed, offset):
            tokens, _ = chain(p, law, drafts, seed, offset)
            depth = drafts.shape[1]
            tokens[:, :depth] = drafts.clamp(max=p.shape[-1] - 2)
            return tokens.clamp_min(0), torch.full_like(seed, depth)

        core.model = replace(core.model, ops=replace(core.model.ops, chain_verify=verify))
        return core

    patch.setattr(test_speculative, "bench", broken)


def clip_nothing(patch: pytest.MonkeyPatch) -> None:
    real = RequestTable.clip

    def clip(self, tokens, accepted, lanes):
        emission = real(self, tokens, accepted, lanes)
        kept = (torch.arange(tokens.shape[1]) <= accepted[:, None]) & lanes.live[:, None]
        return replace(emission, kept=kept, count=kept.sum(1))

    patch.setattr(RequestTable, "clip", clip)


def count_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    real = RequestTable.commit

    def commit(self, lanes, consumed, hidden, emission, *spent):
        everything = torch.ones_like(emission.kept)
        self.policy.generated_counts.index_put_(
            (lanes.slots[:, None].expand_as(everything).reshape(-1), emission.tokens.clamp_min(0).reshape(-1)),
            (everything & ~emission.kept).reshape(-1).int(),
            accumulate=True,
        )
        real(self, lanes, consumed, hidden, emission, *spent)

    patch.setattr(RequestTable, "commit", commit)


def commit_feedback_of_the_last_row(patch: pytest.MonkeyPatch) -> None:
    real = RequestTable.commit

    def commit(self, lanes, consumed, hidden, emission, *spent):
        count = len(lanes.slots)
        last = Hidden(*(rows.view(count, -1, rows.shape[1])[:, -1] for rows in (hidden.output, hidden.feedback)))
        real(self, lanes, consumed.clamp(max=1), last, emission, *spent)
        self.consumed[lanes.slots] += (consumed - 1).clamp_min(0)

    patch.setattr(RequestTable, "commit", commit)


def offer_beyond_the_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpu, "valid_length", lambda count, lanes, arguments: count)


def take_every_lane_for_live(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpu, "live_lanes", lambda table, arguments, count, ended: arguments.lanes[:count] != table.null_slot)


def trust_stale_copies(patch: pytest.MonkeyPatch) -> None:
    real = cpu.remaining_copy

    def remaining(lanes, arguments, depth):
        tokens, _ = real(lanes, arguments, depth)
        known = lanes.consumed + 1 - arguments.copy_position[: len(tokens)]
        return tokens, (arguments.copy_length[: len(tokens)] - known).clamp(0, depth)

    patch.setattr(cpu, "remaining_copy", remaining)


@pytest.mark.parametrize(
    ("mutant", "guard"),
    [
        (accept_everything, every_count),
        (clip_nothing, stop_inside_block),
        (count_rejected_drafts, every_count),
        (commit_feedback_of_the_last_row, every_count),
        (offer_beyond_the_budget, every_count),
        (take_every_lane_for_live, dead_lane),
        (take_every_lane_for_live, stale_generation),
        (trust_stale_copies, stale_copy),
    ],
    ids=lambda function: function.__name__,
)
def test_the_mutant_is_caught(monkeypatch, mutant: Patch, guard: Callable[[], None]):
    guard()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        guard()
