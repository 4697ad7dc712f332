"""The same numbers under the names that vLLM has given them, for dashboards and load generators that look for these.

What differs: vLLM counts a prompt when it has run, here it is counted when its completion ends.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from flare.server.metrics.distribution import Distribution
from flare.server.metrics.reading import Reading
from flare.server.metrics.tally import Tally

LABELS = ("model_name", "engine")
REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}


def vllm_families(tally: Tally, reading: Reading, model: str) -> Iterator[Metric]:
    """vLLM's families, as far as they mean something here."""
    series = (model, "0")
    stats = reading.stats
    held_share = reading.used_pages / stats.total_pages if stats.total_pages else 0.0
    gauges = {
        "num_requests_running": stats.running,
        "num_requests_waiting": stats.waiting,
        "kv_cache_usage_perc": held_share,
        "gpu_cache_usage_perc": held_share,  # the name before it
    }
    for name, value in gauges.items():
        family = GaugeMetricFamily(f"vllm:{name}", f"See flare's own metrics: {name}.", labels=LABELS)
        family.add_metric(series, value)
        yield family
    counts = {
        "prompt_tokens": tally.prompt,
        "generation_tokens": tally.generated,
        "num_preemptions": stats.preemptions,
        "prefix_cache_queries": tally.prompt,
        "prefix_cache_hits": tally.cached,
        "spec_decode_num_drafts": tally.drafts,
        "spec_decode_num_draft_tokens": tally.offered,
        "spec_decode_num_accepted_tokens": tally.accepted,
    }
    for name, value in counts.items():
        yield _labelled(name, None, {"": value}, series)
    positions = {str(depth): count for depth, count in sorted(tally.accepted_by_depth.items())}
    yield _labelled("spec_decode_num_accepted_tokens_per_pos", "position", positions, series)
    finished = {told: tally.finished[reason] for reason, told in REASONS.items()}
    yield _labelled("request_success", "finished_reason", finished, series)
    distributions: dict[str, Distribution] = {
        "time_to_first_token_seconds": tally.ttft_s,
        "time_per_output_token_seconds": tally.gap_s,
        "inter_token_latency_seconds": tally.gap_s,
        "request_time_per_output_token_seconds": tally.per_token_s,
        "e2e_request_latency_seconds": tally.whole_s,
    }
    for name, distribution in distributions.items():
        family = HistogramMetricFamily(f"vllm:{name}", f"See flare's own metrics: {name}.", labels=LABELS)
        distribution.add_to(family, series)
        yield family


def _labelled(name: str, label: str | None, counts: Mapping[str, float], series: tuple[str, ...]) -> Metric:
    labels = LABELS if label is None else (*LABELS, label)
    family = CounterMetricFamily(f"vllm:{name}", f"See flare's own metrics: {name}.", labels=labels)
    for key, count in counts.items():
        family.add_metric(series if label is None else (*series, key), count)
    return family
