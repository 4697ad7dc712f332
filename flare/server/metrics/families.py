"""Flare's own metric families, drawn from a tally and a reading."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from flare.server.metrics.distribution import Distribution
from flare.server.metrics.reading import Reading
from flare.server.metrics.tally import Tally


def request_families(tally: Tally) -> Iterator[Metric]:
    """HTTP requests, choices and tokens."""
    requests = CounterMetricFamily(
        "flare_requests", "Answers to generating requests; 499 is a client that left.", labels=("route", "status")
    )
    for (route, status), count in tally.answered_by.items():
        requests.add_metric((route, str(status)), count)
    yield requests
    yield _counts("flare_requests_received", "Requests to generating routes.", "route", tally.received_by)
    seconds = HistogramMetricFamily(
        "flare_request_seconds", "From a request to the end of its answer.", labels=["route"]
    )
    for route, distribution in tally.http_s.items():
        distribution.add_to(seconds, (route,))
    yield seconds
    yield _counts("flare_choices", "Ended completions.", "finish_reason", tally.finished)
    yield counter("flare_prompt_tokens", "Prompt tokens of ended completions.", tally.prompt)
    yield counter("flare_cached_tokens", "Prompt tokens of ended completions that the cache had.", tally.cached)
    yield counter("flare_generated_tokens", "Generated tokens.", tally.generated)
    yield _counts("flare_source_tokens", "Generated tokens by what proposed them.", "source", tally.tokens_by_source)
    yield histogram("flare_time_to_first_token_seconds", "From submission to the first token.", tally.ttft_s)
    yield histogram(
        "flare_time_per_output_token_seconds", "(end - first token) / (tokens - 1) per completion.", tally.per_token_s
    )
    yield histogram("flare_completion_seconds", "From submission to the last token.", tally.whole_s)


def speculation_families(tally: Tally) -> Iterator[Metric]:
    """Rounds, drafts and what became of them."""
    yield counter("flare_rounds", "Rounds of one request each, the prefill not counted.", tally.rounds)
    yield _counts("flare_rounds_by_width", "Rounds by verification width.", "width", tally.widths)
    yield counter("flare_spec_decode_num_drafts", "Rounds that were offered drafts.", tally.drafts)
    yield counter("flare_spec_decode_num_draft_tokens", "Offered drafts.", tally.offered)
    yield counter("flare_spec_decode_num_accepted_tokens", "Accepted drafts.", tally.accepted)
    for name, what, by_depth in (
        (
            "flare_spec_decode_num_draft_tokens_per_pos",
            "Offered drafts; the first has position 0.",
            tally.offered_by_depth,
        ),
        ("flare_spec_decode_num_accepted_tokens_per_pos", "Accepted drafts by position.", tally.accepted_by_depth),
    ):
        yield _counts(name, what, "position", dict(sorted(by_depth.items())))
    yield _counts("flare_draft_tokens_by_source", "Offered drafts by source.", "source", tally.offered_by_source)
    yield _counts("flare_accepted_tokens_by_source", "Accepted drafts by source.", "source", tally.accepted_by_source)


def engine_families(tally: Tally, reading: Reading) -> Iterator[Metric]:
    """What the engine holds, and what it has done that no completion tells."""
    stats, policy = reading.stats, reading.policy
    yield gauge("flare_requests_running", "Completions with a slot.", stats.running)
    yield gauge("flare_requests_waiting", "Completions without a slot.", stats.waiting)
    yield gauge("flare_launches_in_flight", "Graphs submitted and not settled.", stats.launches_in_flight)
    pages = GaugeMetricFamily("flare_pages", "Pages of 64 tokens.", labels=("state",))
    pages.add_metric(("free",), stats.free_pages)
    pages.add_metric(("cached",), reading.cached_pages)
    pages.add_metric(("used",), reading.used_pages)
    yield pages
    yield gauge("flare_pages_size", "All pages.", stats.total_pages)
    yield gauge("flare_slots_free", "Slots without a request.", stats.free_slots)
    yield gauge("flare_slots_size", "All slots.", stats.total_slots)
    yield gauge("flare_snapshots_free", "Snapshot rows that nobody refers to.", stats.free_snapshots)
    yield gauge("flare_snapshots_size", "All snapshot rows.", stats.total_snapshots)
    yield gauge("flare_cached_prefixes", "Points a prompt could begin from.", stats.cached_prefixes)
    yield counter("flare_prefix_cache_hits", "Ended completions that began from a cached prefix.", tally.hits)
    yield counter("flare_prefix_cache_hit_tokens", "Prompt tokens restored instead of run.", stats.prefix_hit_tokens)
    yield counter("flare_preemptions", "Requests that were parked.", stats.preemptions)
    yield counter("flare_exploration_spent_seconds", "Expected cost of all probes of other widths.", policy.spent_s)
    yield gauge("flare_exploration_budget_seconds", "Saved time that probes may still spend.", policy.budget_s)


def counter(name: str, what: str, value: float) -> CounterMetricFamily:
    """A counter without labels; `_total` is added to its name where it is exposed."""
    return CounterMetricFamily(name, what, value=value)


def gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    """A gauge without labels."""
    return GaugeMetricFamily(name, what, value=value)


def histogram(name: str, what: str, distribution: Distribution) -> HistogramMetricFamily:
    """A histogram without labels."""
    family = HistogramMetricFamily(name, what, labels=())
    distribution.add_to(family)
    return family


def _counts(name: str, what: str, label: str, counts: Mapping[str, int] | Mapping[int, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, what, labels=(label,))
    for key, count in counts.items():
        family.add_metric((str(key),), count)
    return family
