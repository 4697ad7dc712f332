"""What /metrics tells is what the completions themselves tell, under Flare's names and vLLM's."""

import threading
from collections import Counter

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flare.runtime.policy import Adaptive, Exploration, Option
from flare.runtime.policy.exploration import SPACING_ROUNDS
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling
from flare.server.metrics import reading_of
from flare.server.metrics.distribution import Distribution
from flare.server.metrics.families import histogram
from flare.server.observer import Step
from tests.runtime.scripted_core import scripted_engine
from tests.runtime.scripted_device import scripted_manifest
from tests.server.serving import mixing, scripted, until


class Kept:
    """An observer that keeps every completion."""

    def __init__(self):
        self.completions: list[Completion] = []
        self.answers: list[tuple[str, int]] = []

    def loaded(self, model): ...

    def received(self, route): ...

    def answered(self, route, status, seconds):
        self.answers.append((route, status))

    def stepped(self, step: Step):
        events = [delivery.event for delivery in step.deliveries if delivery.event is not None]
        self.completions += [event.completion for event in events if event.completion is not None]


def samples(served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series of /metrics by name and labels."""
    families = text_string_to_metric_families(served.get("/metrics").text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def labelled(found, name: str, label: str) -> dict[str, float]:
    """The series of one name that are not zero, by one of their labels."""
    return {dict(labels)[label]: value for (series, labels), value in found.items() if series == name and value}


def leave_early(served):
    """A client that reads two chunks of a stream and hangs up."""
    body = {"prompt": "leaving now, leaving now", "stream": True, "max_tokens": 300, "ignore_eos": True}
    with httpx.stream("POST", served.url + "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(3):
            next(lines)


@pytest.fixture(scope="module")
def measured():
    """A server after some traffic: its metrics, what its observer kept, and the bodies of the answers."""
    kept = Kept()
    manifest = scripted_manifest(vocab=300, context=512, snapshots=8, paged=True)
    prefixed = ("serving.prefix_cache=true", "serving.metrics_alias=vllm")
    with scripted(mixing(), *prefixed, manifest=manifest, observer=kept, pause_s=0.001) as served:
        before = samples(served)
        prompt = "to be or not to be " * 9
        bodies = [
            served.post("/v1/completions", {"prompt": prompt, "max_tokens": 40}).json(),
            served.post("/v1/completions", {"prompt": prompt, "max_tokens": 40}).json(),  # from the cache
            served.post("/v1/completions", {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 9}).json(),
            served.post("/v1/completions", {"prompt": "one", "max_tokens": 1}).json(),
        ]
        assert served.post("/v1/completions", {"prompt": "x", "max_tokens": 0}).status_code == 400
        leave_early(served)
        until(lambda: served.engine.open_choices == 0 and served.service.server.in_flight == 0)
        yield before, samples(served), kept, bodies


def test_counters_equal_the_sum_over_completions(measured):
    _, found, kept, _ = measured
    done = kept.completions
    assert len(done) == 8 and any(each.finish_reason == "cancelled" for each in done)
    expected = {
        "flare_prompt_tokens_total": sum(each.usage.prompt_tokens for each in done),
        "flare_cached_tokens_total": sum(each.usage.cached_tokens for each in done),
        "flare_generated_tokens_total": sum(each.usage.completion_tokens for each in done),
        "flare_prefix_cache_hits_total": sum(each.usage.cached_tokens > 0 for each in done),
        "flare_prefix_cache_hit_tokens_total": sum(each.usage.cached_tokens for each in done),
        "flare_rounds_total": sum(each.speculation.rounds for each in done),
        "flare_spec_decode_num_drafts_total": sum(row.offered > 0 for each in done for row in each.rounds),
        "flare_spec_decode_num_draft_tokens_total": sum(each.speculation.offered for each in done),
        "flare_spec_decode_num_accepted_tokens_total": sum(each.speculation.accepted for each in done),
    }
    assert {name: found[name, ()] for name in expected} == expected
    assert expected["flare_spec_decode_num_accepted_tokens_total"] > 20  # the traffic was worth counting
    assert expected["flare_cached_tokens_total"] > 100


def test_labelled_counters_equal_the_sum_over_completions(measured):
    _, found, kept, _ = measured
    widths, reasons, sources, offered_at, accepted_at, offered_by, accepted_by = (Counter() for _ in range(7))
    for done in kept.completions:
        speculation = done.speculation
        reasons[done.finish_reason] += 1
        widths.update({str(width): count for width, count in speculation.widths.items()})
        sources.update(done.sources)
        offered_at.update({str(depth): counts.offered for depth, counts in enumerate(speculation.by_depth)})
        accepted_at.update({str(depth): counts.accepted for depth, counts in enumerate(speculation.by_depth)})
        offered_by.update({source: counts.offered for source, counts in speculation.by_source.items()})
        accepted_by.update({source: counts.accepted for source, counts in speculation.by_source.items()})
    for name, label, counts in (
        ("flare_choices_total", "finish_reason", reasons),
        ("flare_rounds_by_width_total", "width", widths),
        ("flare_source_tokens_total", "source", sources),
        ("flare_spec_decode_num_draft_tokens_per_pos_total", "position", offered_at),
        ("flare_spec_decode_num_accepted_tokens_per_pos_total", "position", accepted_at),
        ("flare_draft_tokens_by_source_total", "source", offered_by),
        ("flare_accepted_tokens_by_source_total", "source", accepted_by),
    ):
        assert labelled(found, name, label) == {key: count for key, count in counts.items() if count}, name


def test_times_are_those_of_the_completions(measured):
    _, found, kept, _ = measured
    done = [each for each in kept.completions if each.usage.completion_tokens]
    several = [each for each in done if each.usage.completion_tokens > 1]
    per_token = [each.timing.decode_s / (each.usage.completion_tokens - 1) for each in several]
    assert len(several) < len(done)  # one token has a first token and no time per token
    for name, seconds in (
        ("flare_time_to_first_token_seconds", [each.timing.ttft_s for each in done]),
        ("flare_time_per_output_token_seconds", per_token),
    ):
        assert found[f"{name}_count", ()] == len(seconds)
        assert found[f"{name}_sum", ()] == pytest.approx(sum(seconds))
        assert found[f"{name}_bucket", (("le", "+Inf"),)] == len(seconds)


def test_what_clients_were_told_adds_up_to_what_is_counted(measured):
    _, found, kept, bodies = measured
    told = sum(body["usage"]["completion_tokens"] for body in bodies)
    lost = sum(each.usage.completion_tokens for each in kept.completions if each.finish_reason == "cancelled")
    assert found["flare_generated_tokens_total", ()] == told + lost


def test_requests_are_counted_by_route_and_status(measured):
    _, found, kept, _ = measured
    by_status = labelled(found, "flare_requests_total", "status")
    assert by_status == {"200": 4, "400": 1, "499": 1} == Counter(str(status) for _, status in kept.answers)
    assert labelled(found, "flare_requests_received_total", "route") == {"/v1/completions": 6}


def test_everything_is_given_back_when_all_has_ended(measured):
    before, found, _, _ = measured
    for name in ("flare_requests_running", "flare_requests_waiting", "flare_launches_in_flight"):
        assert found[name, ()] == 0
    assert found["flare_slots_free", ()] == found["flare_slots_size", ()] == 4
    assert found["flare_event_loop_tasks", ()] == before["flare_event_loop_tasks", ()]
    pages = labelled(found, "flare_pages", "state")
    assert sum(pages.values()) == found["flare_pages_size", ()]
    assert pages["cached"] > 0 and "used" not in pages


def test_vllm_names_tell_the_same_numbers(measured):
    _, found, _, _ = measured
    model = (("engine", "0"), ("model_name", "smollm2"))
    for theirs, ours in (
        ("vllm:num_requests_running", "flare_requests_running"),
        ("vllm:num_requests_waiting", "flare_requests_waiting"),
        ("vllm:prompt_tokens_total", "flare_prompt_tokens_total"),
        ("vllm:generation_tokens_total", "flare_generated_tokens_total"),
        ("vllm:num_preemptions_total", "flare_preemptions_total"),
        ("vllm:spec_decode_num_drafts_total", "flare_spec_decode_num_drafts_total"),
        ("vllm:spec_decode_num_draft_tokens_total", "flare_spec_decode_num_draft_tokens_total"),
        ("vllm:spec_decode_num_accepted_tokens_total", "flare_spec_decode_num_accepted_tokens_total"),
        ("vllm:time_to_first_token_seconds_sum", "flare_time_to_first_token_seconds_sum"),
        ("vllm:e2e_request_latency_seconds_count", "flare_completion_seconds_count"),
    ):
        assert found[theirs, model] == found[ours, ()], theirs
    assert found["vllm:kv_cache_usage_perc", model] == found["vllm:gpu_cache_usage_perc", model] == 0
    assert labelled(found, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position") == labelled(
        found, "flare_spec_decode_num_accepted_tokens_per_pos_total", "position"
    )
    assert labelled(found, "vllm:request_success_total", "finished_reason") == {"length": 7, "abort": 1}
    assert found["vllm:time_per_output_token_seconds_count", model] > 20


def test_vllm_names_are_told_only_where_they_are_asked_for():
    with scripted(mixing()) as served:
        assert "vllm:" not in served.get("/metrics").text
        assert served.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_failed_choice_is_counted_as_such():
    with scripted(mixing()) as served:
        served.device.failing = 1
        assert served.post("/v1/completions", {"prompt": "ab", "max_tokens": 9}).status_code == 500
        found = samples(served)
        assert labelled(found, "flare_requests_total", "status") == {"500": 1}
        assert sum(labelled(found, "flare_choices_total", "finish_reason").values()) == 1


def test_metrics_are_for_anyone_and_answer_while_the_engine_is_busy():
    with scripted(mixing(), api_key="secret") as served:
        served.device.gate.clear()
        key = {"Authorization": "Bearer secret"}
        asking = threading.Thread(
            target=served.post, args=("/v1/completions", {"prompt": "ab"}), kwargs={"headers": key}
        )
        asking.start()
        try:
            until(lambda: served.service.server.in_flight == 1)
            found = samples(served)
            assert found["flare_ready", ()] == found["flare_requests_in_flight", ()] == 1
        finally:
            served.device.gate.set()
            asking.join()
        assert samples(served)["flare_requests_in_flight", ()] == 0


def test_a_value_belongs_to_the_first_bound_that_is_not_below_it():
    distribution = Distribution((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 7.0):
        distribution.observe(seconds)
    family = histogram("x", "what", distribution)
    assert [(sample.labels.get("le"), sample.value) for sample in family.samples] == [
        ("1.0", 2.0),
        ("2.0", 3.0),
        ("+Inf", 4.0),
        (None, 4.0),
        (None, 10.0),
    ]


def test_exploration_tells_what_its_probes_cost():
    exploration = Exploration(0.5)
    exploration.settle(10.0, 1.0)
    before_s = exploration.budget_seconds
    best, other = Option(3, 2.0, 1.0, 50), Option(4, 2.2, 1.5, 0)
    assert [exploration.probe(best, [other]) for _ in range(SPACING_ROUNDS)] == [None] * (SPACING_ROUNDS - 1) + [other]
    assert exploration.spent_seconds == pytest.approx(1.5 - 2.2 / 2.0)
    assert exploration.budget_seconds == pytest.approx(before_s - exploration.spent_seconds)


def test_a_reading_holds_what_an_adaptive_policy_knows():
    engine = scripted_engine(mixing(), adaptive_verification=True, exploration_share=0.5)
    engine.generate("to be or not to be", Sampling(max_tokens=80))
    policy = engine.policy
    assert isinstance(policy, Adaptive)
    policy.exploration.spent_seconds, policy.exploration.budget_seconds = 1.25, 0.5
    reading = reading_of(engine)
    assert (reading.policy.spent_s, reading.policy.budget_s) == (1.25, 0.5)
    assert reading.policy.last == engine.explain()[-1] and reading.policy.weighed is not None
    assert reading.used_pages == 0
    fixed = reading_of(scripted_engine(mixing()))
    assert (fixed.policy.spent_s, fixed.policy.last) == (0.0, None)
