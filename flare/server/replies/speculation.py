"""`metrics.speculative_decoding`, in the shape that vLLM publishes and load generators read."""

from collections.abc import Sequence
from typing import Any

from flare.runtime.results import Round
from flare.server.wire.fields import MetricsLevel


def speculation_metrics(rounds: Sequence[Round], depth: int, level: MetricsLevel) -> dict[str, Any] | None:
    """How a completion's drafts fared; None where none was offered.

    A step is a round that was offered drafts; what a round accepts never counts the token the target adds to it.

    Args:
        depth: most drafts a round of this core can be offered.
    """
    steps = [row for row in rounds if row.offered]
    if level == "none" or not steps:
        return None
    offered, accepted = sum(row.offered for row in steps), sum(row.accepted for row in steps)
    histogram = [0] * (depth + 1)
    for row in steps:
        histogram[row.accepted] += 1
    document: dict[str, Any] = {
        "mean_acceptance_length": 1 + accepted / len(steps),
        "draft_acceptance_rate": accepted / offered,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": offered,
        "num_spec_steps": len(steps),
        "num_spec_tokens": depth,
    }
    if level == "detailed":
        document["per_step_accepted"] = [row.accepted for row in steps]
        document["per_step_drafted"] = [row.offered for row in steps]
    return document
