"""Replies of /v1/chat/completions."""

from dataclasses import dataclass, field
from typing import Any

from flare.runtime.results import Completion, Event
from flare.server.engine_thread import Arrival
from flare.server.parsing.answer_format import AnswerParser, CallBegin, ChatPrompt, Part
from flare.server.replies.completions import joined
from flare.server.replies.logprobs import chat_logprobs
from flare.server.replies.message import delta, merged, message
from flare.server.replies.reply import Envelope, chunk, told
from flare.server.replies.spelling import Spelling
from flare.server.wire.chat import ChatBody

CHUNK = "chat.completion.chunk"


@dataclass
class _Choice:
    """One choice so far."""

    parser: AnswerParser
    events: list[Event] = field(default_factory=list)
    completion: Completion | None = None
    called: bool = False

    def parts(self, event: Event) -> list[Part]:
        """What an event says."""
        parts = self.parser.push(event.texts, event.token_ids)
        if event.completion is not None:
            parts += self.parser.finish()
        parts = merged(parts)
        self.called = self.called or any(isinstance(part, CallBegin) for part in parts)
        return parts

    @property
    def finish_reason(self) -> str | None:
        if self.completion is None:
            return None
        return (
            "tool_calls" if self.called and self.completion.finish_reason == "stop" else self.completion.finish_reason
        )


class ChatReply:
    """Builds the response to one `ChatBody`."""

    def __init__(self, body: ChatBody, envelope: Envelope, prompt: ChatPrompt, spelling: Spelling) -> None:
        self._body = body
        self._envelope = envelope
        self._prompt = prompt
        self._spelling = spelling
        self._choices = [_Choice(prompt.parser()) for _ in range(envelope.n)]
        self._generated = 0

    @property
    def completions(self) -> list[Completion]:
        return [choice.completion for choice in self._choices if choice.completion is not None]

    def opening(self) -> bytes:
        head, greeting = self._envelope.head(CHUNK), {"role": "assistant", "content": ""}
        documents = [head | {"choices": [_told(index, greeting, None)]} for index in range(len(self._choices))]
        documents[0] |= self._prompt_ids()
        return b"".join(chunk(document | self._usage_so_far()) for document in documents)

    def take(self, arrival: Arrival) -> None:
        choice = self._choices[arrival.choice]
        choice.events.append(arrival.event)
        choice.completion = arrival.event.completion

    def chunks(self, arrival: Arrival) -> bytes:
        index, event = arrival
        choice = self._choices[index]
        self._generated += len(event.token_ids)
        choice.completion = event.completion
        extras = self._extras(event)
        documents = [_told(index, delta(part), None) for part in choice.parts(event)]
        if not documents and extras:
            documents.append(_told(index, {}, None))
        if documents:
            documents[0] |= extras
        if choice.completion is not None:
            documents.append(_told(index, {}, choice.finish_reason))
        head = self._envelope.head(CHUNK)
        return b"".join(chunk(head | {"choices": [told_of]} | self._usage_so_far()) for told_of in documents)

    def closing(self) -> bytes:
        tail = self._envelope.metrics(self.completions)
        if self._envelope.include_usage:
            tail["usage"] = self._usage()
        return chunk(self._envelope.head(CHUNK) | {"choices": []} | tail) if tail else b""

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self._choices):
            event = joined(choice.events)
            answer = message(choice.parts(event))
            told_of = {"index": index, "message": answer, "logprobs": None, "finish_reason": choice.finish_reason}
            choices.append(told_of | self._extras(event))
        document = self._envelope.head("chat.completion") | {"choices": choices, "usage": self._usage()}
        return document | self._prompt_ids() | self._envelope.metrics(self.completions)

    def _extras(self, event: Event) -> dict[str, Any]:
        """What is told of an event's tokens beside their text."""
        if not event.token_ids:
            return {}
        extras = told(self._body, event)
        if self._body.logprobs:
            extras["logprobs"] = chat_logprobs(event.logprobs, self._spelling)
        return extras

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._prompt.token_ids} if self._body.return_token_ids else {}

    def _usage(self) -> dict[str, Any]:
        return self._envelope.usage(self.completions, sum(choice.parser.reasoning_tokens for choice in self._choices))

    def _usage_so_far(self) -> dict[str, Any]:
        if not self._envelope.continuous_usage:
            return {}
        return {"usage": self._envelope.usage_so_far(self._generated)}


def _told(index: int, said: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": said, "logprobs": None, "finish_reason": finish_reason}
