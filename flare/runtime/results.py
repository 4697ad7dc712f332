"""What a caller receives: events while a request runs, one completion when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length", "cancelled"]
TokenSource = Literal["prefill", "target", "learned", "history", "context", "forced"]


class Logprob(NamedTuple):
    """One generated token's log-probability and the likeliest alternatives, most likely first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Round(NamedTuple):
    """One round of one request, cut at the request's end.

    Attributes:
        width: target rows of the graph; offered, accepted: drafts; emitted: tokens kept.
        sources: where each offered draft came from, in depth order.
    """

    width: int
    offered: int
    accepted: int
    emitted: int
    sources: tuple[TokenSource, ...]


class Counts(NamedTuple):
    """Drafts offered and accepted."""

    offered: int
    accepted: int


@dataclass(frozen=True)
class Usage:
    """Token counts of one completion."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Speculation:
    """How one request's rounds went.

    Attributes:
        by_depth: counts of the first draft, the second, …; up to the deepest that was offered.
        widths: rounds per verification width.
        reason: why every round had width one although the core can do wider ones, or why drafts were not learned ones
            although the core can learn; else None.
    """

    rounds: int
    offered: int
    accepted: int
    emitted: int
    by_source: dict[str, Counts]
    by_depth: tuple[Counts, ...]
    widths: dict[int, int]
    reason: str | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds from submission to the first token, from there to the last, and the tokens per second of the latter."""

    ttft_s: float
    decode_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Completion:
    """One finished request; every list has one entry per generated token.

    Attributes:
        text: without the stop string and without the id that ended the request.
        token_ids: the last one is the token that completed the stop string, the stop id, or the last of the budget.
        logprobs: None when none were asked for. prompt_logprobs: likewise, with an entry per prompt token, of which the
            first is None: nothing comes before it.
        rounds: what happened after the prefill, which itself samples the first token.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: Speculation
    rounds: tuple[Round, ...]
    sources: tuple[TokenSource, ...]
    timing: Timing
    logprobs: tuple[Logprob, ...] | None = None
    prompt_logprobs: tuple[Logprob | None, ...] | None = None


class Event(NamedTuple):
    """What one settled graph added to a request.

    Attributes:
        text: text released by these tokens; text that could become a stop string comes with a later event.
        texts: the same text cut per token, so that it can be shown by source; a cancelled request's held text is in
            `text` only.
        finish_reason, completion: set in the last event.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    sources: tuple[TokenSource, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: FinishReason | None = None
    completion: Completion | None = None


def summarise(rounds: Sequence[Round], reason: str | None) -> Speculation:
    """Add up the rounds of one request."""
    deepest = max((row.offered for row in rounds), default=0)
    offered, accepted = [0] * deepest, [0] * deepest
    sources: dict[str, list[int]] = {}
    widths: dict[int, int] = {}
    for row in rounds:
        widths[row.width] = widths.get(row.width, 0) + 1
        for depth, source in enumerate(row.sources):
            kept = int(depth < row.accepted)
            offered[depth] += 1
            accepted[depth] += kept
            counts = sources.setdefault(source, [0, 0])
            counts[0] += 1
            counts[1] += kept
    return Speculation(
        rounds=len(rounds),
        offered=sum(offered),
        accepted=sum(accepted),
        emitted=sum(row.emitted for row in rounds),
        by_source={source: Counts(*counts) for source, counts in sources.items()},
        by_depth=tuple(Counts(*pair) for pair in zip(offered, accepted, strict=True)),
        widths=dict(sorted(widths.items())),
        reason=reason,
    )
