"""Pages run out: cached prefixes go, then the youngest request is parked; everyone gets the tokens they get alone."""

import pytest

from flare.errors import CapacityError
from flare.runtime.requests import State
from flare.runtime.sampling import Sampling
from tests.runtime.scripted_core import mixing, scripted_engine
from tests.runtime.scripted_device import scripted_manifest
from tests.runtime.test_engine_batches import prompt_of, reference
from tests.runtime.test_prefix_cache import KINDS

SIZES = [{}, *KINDS.values()]
# An ordinary decode keeps no pairs: a core whose drafter does is met with drafts alone.
MODES = [(sizes, drafts) for sizes in SIZES for drafts in (0, 7) if drafts or "draft_source" not in sizes]


def crowd(engine, count, length, budget, **wishes):
    prompts = [prompt_of(length + index, 65 + index) for index in range(count)]
    handles = [engine.submit(prompt, Sampling(max_tokens=budget, **wishes))[0] for prompt in prompts]
    finished = []
    while engine.step():
        engine.check()
        finished += [handle.order for handle in handles if handle.finished and handle.order not in finished]
    for prompt, handle in zip(prompts, handles, strict=True):
        assert handle.completion is not None
        assert list(handle.completion.token_ids) == reference(prompt, budget)
    return handles, finished


@pytest.mark.parametrize(("sizes", "drafts"), MODES)
def test_parked_requests_go_on_with_the_same_tokens_and_counters(sizes, drafts):
    """The scripted device compares the events a resumed request says it has spent with those it saw."""
    manifest = scripted_manifest(pages=7, **sizes)
    settings = {"mtp_draft_tokens": drafts, "history_drafts": True}
    with scripted_engine(mixing(), manifest, **settings) as engine:
        handles, _ = crowd(engine, 5, 50, 190)
        assert sum(handle.preemptions for handle in handles) == engine.stats().preemptions > 0
        assert handles[0].preemptions == 0  # the oldest is never parked
        assert all(handle.completion.usage.cached_tokens == 0 for handle in handles)  # nobody hit when it was admitted


def test_the_youngest_gives_way_and_the_oldest_ends_first():
    with scripted_engine(mixing(), scripted_manifest(pages=6), mtp_draft_tokens=0) as engine:
        handles, finished = crowd(engine, 5, 50, 190)
        assert finished == sorted(finished)
        assert handles[0].preemptions == 0 < sum(handle.preemptions for handle in handles)


def test_a_parked_request_keeps_its_place_before_later_arrivals():
    with scripted_engine(mixing(), scripted_manifest(pages=4), mtp_draft_tokens=0) as engine:
        first = engine.submit(prompt_of(40), Sampling(max_tokens=200))[0]
        second = engine.submit(prompt_of(41), Sampling(max_tokens=120))[0]
        third = engine.submit(prompt_of(42), Sampling(max_tokens=3))[0]
        while not second.preemptions:
            engine.step()
            engine.check()
        assert second.state is State.WAITING and second.pages == () and second.generated_tokens > 0
        assert list(engine.scheduler._waiting) == [second, third]
        while engine.step():
            engine.check()
        assert list(second.completion.token_ids) == reference(prompt_of(41), 120)
        assert first.preemptions == third.preemptions == 0


def test_a_parked_request_may_be_cancelled_and_no_draft_of_it_survives():
    with scripted_engine(mixing(), scripted_manifest(pages=4), mtp_draft_tokens=0) as engine:
        first = engine.submit(prompt_of(40), Sampling(max_tokens=200))[0]
        second = engine.submit(prompt_of(41), Sampling(max_tokens=120))[0]
        while not second.preemptions:
            engine.step()
        known = list(second.tokens)
        engine.cancel(second)
        assert second.completion.finish_reason == "cancelled" and second.tokens == known
        while engine.step():
            engine.check()
        assert list(first.completion.token_ids) == reference(prompt_of(40), 200)
        assert engine.stats().free_pages == 4


def test_a_parked_request_begins_at_its_own_last_boundary():
    with scripted_engine(mixing(), scripted_manifest(pages=10, snapshots=8), mtp_draft_tokens=0) as engine:
        crowd(engine, 4, 50, 180)
        log = [entry[0] for entry in engine._device.log]
        assert engine.stats().preemptions > 0 and log.count("restore") > 0


@pytest.mark.parametrize("sizes", SIZES, ids=["no cache", *KINDS])
def test_one_request_may_fill_all_pages_behind_a_full_cache(sizes):
    with scripted_engine(mixing(), scripted_manifest(pages=4, **sizes)) as engine:
        for first in range(65, 70):
            prompt = prompt_of(100, first)
            for budget in (156, 10, 156):
                done = engine.generate(prompt, Sampling(max_tokens=budget))
                assert list(done.token_ids) == reference(prompt, budget)
                engine.check()
        while engine.step():
            pass
        assert engine.stats().preemptions == 0


def test_what_can_never_fit_is_refused_at_once_even_where_a_prefix_is_cached():
    with scripted_engine(mixing(), scripted_manifest(pages=2, snapshots=3)) as engine:
        engine.generate(prompt_of(100), Sampling(max_tokens=20))
        with pytest.raises(CapacityError, match=r"needs 3 pages of this core's 2"):
            engine.generate(prompt_of(100), Sampling(max_tokens=29))


def test_stop_strings_and_logprobs_survive_parking():
    with scripted_engine(mixing(), scripted_manifest(pages=5)) as engine:
        handles, _ = crowd(engine, 3, 50, 150, stop="never", logprobs=1)
        assert engine.stats().preemptions > 0
        for handle in handles:
            assert [row.token_id for row in handle.completion.logprobs] == list(handle.completion.token_ids)


def test_a_request_whose_prompt_is_not_consumed_yet_can_be_parked():
    manifest = scripted_manifest(pages=7, chunks=(2,), context=320)
    with scripted_engine(mixing(), manifest, mtp_draft_tokens=0) as engine:
        first = engine.submit(prompt_of(60), Sampling(max_tokens=250))[0]
        while first.generated_tokens < 4:
            engine.step()
        second = engine.submit(prompt_of(250, 70), Sampling(max_tokens=5))[0]
        while engine.step():
            engine.check()
        assert second.preemptions > 0
        assert list(second.completion.token_ids) == reference(prompt_of(250, 70), 5)
        assert list(first.completion.token_ids) == reference(prompt_of(60), 250)
