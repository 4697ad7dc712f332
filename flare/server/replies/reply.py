"""A reply: what one HTTP request gets back, whole or as a stream of chunks, and what all kinds of it share."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from flare.runtime.results import Completion, Event
from flare.server.engine_thread import Arrival
from flare.server.replies.speculation import speculation_metrics
from flare.server.wire.fields import GeneratingBody, MetricsLevel

DONE = b"data: [DONE]\n\n"


class Reply(Protocol):
    """Takes arrivals in order; either `opening`, `chunks` and `closing` are sent, or `whole`."""

    def opening(self) -> bytes:
        """Chunks before the first arrival."""
        ...

    def chunks(self, arrival: Arrival) -> bytes:
        """What a stream says about an arrival; may be empty."""
        ...

    def closing(self) -> bytes:
        """Chunks behind the last arrival."""
        ...

    def take(self, arrival: Arrival) -> None:
        """Keep an arrival for `whole`."""
        ...

    def whole(self) -> dict[str, Any]:
        """The body, when every choice has ended."""
        ...

    @property
    def completions(self) -> Sequence[Completion]:
        """Those of the choices that have ended."""
        ...


@dataclass(frozen=True)
class Envelope:
    """What surrounds the choices of a response, and who asked for what.

    Attributes:
        id, model, fingerprint: as OpenAI has them.
        n: choices per prompt; prompt_tokens: of each prompt.
        depth: most drafts of a round; level: how much is told about them.
    """

    id: str
    model: str
    fingerprint: str
    created: int
    n: int
    prompt_tokens: tuple[int, ...]
    depth: int
    level: MetricsLevel
    include_usage: bool
    continuous_usage: bool

    def head(self, kind: str) -> dict[str, Any]:
        """The fields before the choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def usage(self, completions: Sequence[Completion], reasoning_tokens: int | None = None) -> dict[str, Any]:
        """Token counts of the whole request; a prompt counts once however often it is answered."""
        cached = sum(completion.usage.cached_tokens for completion in completions[:: self.n])
        usage = _counts(sum(self.prompt_tokens), sum(done.usage.completion_tokens for done in completions))
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        return usage

    def usage_so_far(self, generated: int) -> dict[str, Any]:
        """Token counts while a stream goes on."""
        return _counts(sum(self.prompt_tokens), generated)

    def metrics(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """`metrics`, where it is asked for and one choice was drafted for; else nothing."""
        if len(completions) != 1:
            return {}
        drafts = speculation_metrics(completions[0].rounds, self.depth, self.level)
        return {} if drafts is None else {"metrics": {"speculative_decoding": drafts}}


def envelope(prefix: str, body: GeneratingBody, **shared: Any) -> Envelope:
    """The envelope of a new response.

    Args:
        shared: the fields that only the server knows.
    """
    options = body.stream_options
    return Envelope(
        id=f"{prefix}-{uuid4().hex}",
        created=int(time.time()),
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
        **shared,
    )


def chunk(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def provenance(texts: Sequence[str], sources: Sequence[str]) -> list[dict[str, str]]:
    """Text and source of every token."""
    return [{"text": text, "source": source} for text, source in zip(texts, sources, strict=True)]


def told(body: GeneratingBody, event: Event) -> dict[str, Any]:
    """Flare's additions to a choice for one event's tokens."""
    extras: dict[str, Any] = {}
    if body.return_token_ids:
        extras["token_ids"] = list(event.token_ids)
    if body.return_provenance:
        extras["provenance"] = provenance(event.texts, event.sources)
    return extras


def _counts(prompt: int, generated: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
