"""Arms: each sees the graphs its own serving would select, under the ids of the one core."""

import pytest

from flare.bench.arms import (
    ArmDevice,
    arm_manifest,
    own_arm,
    plain_arm,
    serving,
    table_arms,
    take_over,
    whole,
)
from flare.bench.stages import Clock, Timed
from flare.build import plan_parts
from flare.config.compose import compose
from flare.contract.frames import Source
from flare.runtime.policy import Prior, RoundOutcome, adaptive, fixed
from tests.runtime.scripted_device import ScriptedDevice, scripted_manifest


@pytest.fixture(scope="module")
def config():
    return compose("smollm2", ["serving.concurrency=1", "preparation.context_length=256"])


@pytest.fixture(scope="module")
def manifest(config):
    return plan_parts(whole(config), whole_catalog=True).plan.manifest


def widths(manifest, kind="speculative"):
    return [graph.token_capacity for graph in manifest.graphs if graph.kind == kind]


def test_the_whole_catalog_holds_both_modes(manifest):
    assert widths(manifest) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert widths(manifest, "decode") == [1]


def test_plain_decodes_ordinarily_and_a_fixed_width_has_no_other(config, manifest):
    plain = arm_manifest(manifest, plain_arm(config).config)
    assert (widths(plain), widths(plain, "decode")) == ([], [1])
    four = arm_manifest(manifest, serving(config, fixed_width=4))
    assert (widths(four), widths(four, "decode")) == ([4], [])
    assert all(manifest.graphs[graph.id] == graph for graph in (*plain.graphs, *four.graphs))


def test_the_table_crosses_widths_and_copies(config):
    arms = list(table_arms(config))
    assert len(arms) == 15
    assert len({arm.name for arm in arms}) == 15
    fixed_both = next(arm for arm in arms if (arm.width, arm.copies) == ("6", "both"))
    assert fixed_both.config.serving.fixed_width == 6
    assert fixed_both.config.serving.history_drafts
    assert fixed_both.config.serving.context_drafts
    bare = next(arm for arm in arms if (arm.width, arm.copies) == ("adaptive", "none"))
    assert not bare.config.serving.history_drafts
    assert bare.config.serving.adaptive_verification


def test_own_is_what_serving_says(config):
    assert (own_arm(config).width, own_arm(config).copies) == ("adaptive", "both")
    assert own_arm(serving(config, fixed_width=4)).width == "4"
    assert own_arm(serving(config, mtp_draft_tokens=0)).width == "ordinary"
    assert own_arm(serving(config, history_drafts=False)).copies == "context"


def test_what_an_adaptive_arm_learned_goes_on_in_its_next_engine():
    first = adaptive({1: (1, 8)}, Prior(), 0.0)
    first.observe(RoundOutcome(1, 8, 0.5, ((1, Source.HISTORY, 7, 7),)))
    second = adaptive({1: (1, 8)}, Prior(), 0.0)
    take_over(second, first)
    assert second.costs.of_batch(1) == first.costs.of_batch(1)
    assert second.survival is first.survival
    take_over(fixed({1: (1, 8)}, 8), first)
    take_over(second, None)
    assert second.costs is first.costs


def test_an_arms_device_notes_each_replay():
    manifest = scripted_manifest()
    device = ArmDevice(ScriptedDevice(manifest, lambda prefix: 1), manifest)
    arguments = device.arguments(0)
    arguments.lanes[:] = manifest.extent.null_slot
    arguments.page_tables[:] = manifest.extent.null_page
    arguments.boundary_slots[:] = -1
    arguments.lanes[0], arguments.generations[0] = 0, 1
    arguments.page_tables[0, 0] = 0
    arguments.scalars[:2] = 4
    device.submit(0, 0)
    assert device.poll(0)
    device.collect(0)
    device.release(0)
    (replay,) = device.replays
    assert (replay.graph, replay.seconds > 0) == (0, True)


class Part:
    """A part with one timed method and an attribute."""

    width = 5

    def verify(self, rows: int) -> int:
        return rows + self.width

    def other(self) -> str:
        return "as it was"


def test_a_timed_part_answers_as_before_and_the_clock_reads_once():
    clock = Clock()
    timed = Timed(Part(), {"verify": "verify"}, clock)
    assert (timed.verify(3), timed.other(), timed.width) == (8, "as it was", 5)
    assert set(clock.read()) == {"verify"}
    assert clock.read() == {}
