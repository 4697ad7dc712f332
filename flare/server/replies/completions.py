"""Replies of /v1/completions."""

from dataclasses import dataclass, field
from typing import Any

from flare.runtime.results import Completion, Event
from flare.server.engine_thread import Arrival
from flare.server.replies.logprobs import completion_logprobs
from flare.server.replies.reply import Envelope, chunk, told
from flare.server.replies.spelling import Spelling
from flare.server.wire.completions import CompletionBody

KIND = "text_completion"


@dataclass
class _Choice:
    """One choice so far; `offset` counts the characters of its tokens that were told."""

    events: list[Event] = field(default_factory=list)
    completion: Completion | None = None
    begun: bool = False
    offset: int = 0


class CompletionReply:
    """Builds the response to one `CompletionBody`."""

    def __init__(
        self, body: CompletionBody, envelope: Envelope, prompts: list[tuple[str, list[int]]], spelling: Spelling
    ) -> None:
        """Args: prompts: text and ids of each prompt."""
        self._body = body
        self._envelope = envelope
        self._prompts = prompts
        self._spelling = spelling
        self._choices = [_Choice() for _ in range(len(prompts) * envelope.n)]
        self._generated = 0

    @property
    def completions(self) -> list[Completion]:
        return [choice.completion for choice in self._choices if choice.completion is not None]

    def opening(self) -> bytes:
        return b""

    def take(self, arrival: Arrival) -> None:
        choice = self._choices[arrival.choice]
        choice.events.append(arrival.event)
        choice.completion = arrival.event.completion

    def chunks(self, arrival: Arrival) -> bytes:
        choice, event = self._choices[arrival.choice], arrival.event
        self._generated += len(event.token_ids)
        choice.completion = event.completion
        if self._waits_for_scores(choice, event):
            return b""
        if choice.events:  # what came while the prompt's own log-probabilities were awaited
            event, choice.events = joined([*choice.events, event]), []
        told_of = self._told(arrival.choice, choice, event)
        if not (told_of["text"] or event.completion or self._tells_tokens):
            return b""
        document = self._envelope.head(KIND) | {"choices": [told_of]}
        if self._envelope.continuous_usage:
            document["usage"] = self._envelope.usage_so_far(self._generated)
        return chunk(document)

    @property
    def _tells_tokens(self) -> bool:
        """Whether tokens are told of that release no text."""
        body = self._body
        return body.logprobs is not None or bool(body.return_token_ids or body.return_provenance)

    def closing(self) -> bytes:
        tail = self._envelope.metrics(self.completions)
        if self._envelope.include_usage:
            tail["usage"] = self._envelope.usage(self.completions)
        return chunk(self._envelope.head(KIND) | {"choices": []} | tail) if tail else b""

    def whole(self) -> dict[str, Any]:
        choices = [self._told(index, choice, joined(choice.events)) for index, choice in enumerate(self._choices)]
        document = self._envelope.head(KIND) | {"choices": choices}
        return document | {"usage": self._envelope.usage(self.completions)} | self._envelope.metrics(self.completions)

    def _waits_for_scores(self, choice: _Choice, event: Event) -> bool:
        """Scores of the prompt come with the completion; a stream that echoes them can only begin there."""
        if not (self._body.echo and self._body.logprobs is not None) or event.completion is not None:
            return False
        choice.events.append(event)
        return True

    def _told(self, index: int, choice: _Choice, event: Event) -> dict[str, Any]:
        """The choice object for an event; the first one of a choice also tells of its prompt."""
        prompt_text, prompt_ids = self._prompts[index // self._envelope.n]
        first, choice.begun = not choice.begun, True
        echoed = prompt_text if self._body.echo and first else ""
        document: dict[str, Any] = {
            "index": index,
            "text": echoed + event.text,
            "logprobs": self._logprobs(choice, event, prompt_ids if self._body.echo and first else []),
            "finish_reason": event.finish_reason,
        }
        if self._body.return_token_ids and first:
            document["prompt_token_ids"] = prompt_ids
        return document | told(self._body, event)

    def _logprobs(self, choice: _Choice, event: Event, echoed: list[int]) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        scores = event.completion.prompt_logprobs if event.completion is not None and echoed else None
        tokens = [*echoed, *event.token_ids] if scores is not None else list(event.token_ids)
        entries = [*(scores or ()), *event.logprobs]
        document, choice.offset = completion_logprobs(tokens, entries, choice.offset, self._spelling)
        return document


def joined(events: list[Event]) -> Event:
    """Several events of one choice as one."""
    return Event(
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        sources=tuple(source for event in events for source in event.sources),
        texts=tuple(text for event in events for text in event.texts),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        finish_reason=events[-1].finish_reason,
        completion=events[-1].completion,
    )
