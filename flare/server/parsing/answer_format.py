"""The seam between chats and models: how a conversation becomes a prompt, and how the text that comes back is read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol


class Named(NamedTuple):
    """The choice of one tool."""

    name: str


class ContentPart(NamedTuple):
    """Text of the answer."""

    text: str


class ReasoningPart(NamedTuple):
    """Text of the thoughts before it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins; `index` counts the calls of a choice."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


Part = ContentPart | ReasoningPart | CallBegin | CallArguments


@dataclass(frozen=True)
class ToolSpec:
    """A function the model may call; `parameters` is the JSON schema of its arguments, `declared` the tool as sent."""

    name: str
    parameters: Mapping[str, Any]
    declared: Mapping[str, Any]


@dataclass(frozen=True)
class ChatAsk:
    """A chat request as validated.

    Attributes:
        messages: as templates read them; content is text or None.
        context_tokens: what the context holds; a prompt that is certain to fill it is not encoded.
        constraint: the sampling field by which the request itself says what its text must follow; empty without one.
    """

    messages: tuple[dict[str, Any], ...]
    context_tokens: int
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["none", "auto", "required"] | Named = "auto"
    parallel_tool_calls: bool = True
    constraint: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatPrompt:
    """What the engine is given for a chat.

    Attributes:
        sampling: fields of `Sampling` that the format needs; they take the place of the request's own.
        parser: makes a parser for each choice.
    """

    token_ids: list[int]
    parser: Callable[[], "AnswerParser"]
    sampling: dict[str, Any] = field(default_factory=dict)


class AnswerParser(Protocol):
    """Reads one choice as it comes; its parts join to the same whatever pieces the text came in."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thoughts so far, markers included."""
        ...

    def push(self, texts: Sequence[str], token_ids: Sequence[int]) -> list[Part]:
        """What an event says.

        Args:
            texts: what each of its tokens released; control tokens release nothing.
        """
        ...

    def finish(self) -> list[Part]:
        """What was held back, when the choice has ended."""
        ...


class AnswerFormat(Protocol):
    """How one model is spoken to."""

    def prompt(self, ask: ChatAsk) -> ChatPrompt:
        """The conversation as the model wants it. Runs outside the event loop's thread.

        Raises:
            ApiError: what the model cannot do, by the field that asks for it.
            RequestError: messages its template refuses.
        """
        ...
