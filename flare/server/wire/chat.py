"""The body of /v1/chat/completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from flare.server.wire.fields import GeneratingBody, Strict
from flare.server.wire.mistakes import conflict

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class TextPart(Strict):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    """What an earlier answer called; arguments are JSON text."""

    name: Name
    arguments: str


class CallBody(Strict):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageBody(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    reasoning_content: str | None = Field(None, description="what an earlier answer thought")
    tool_calls: Annotated[list[CallBody], Field(fail_fast=True)] | None = Field(
        None, description="what an earlier answer called"
    )
    tool_call_id: str | None = Field(None, description="which call a tool message answers")

    @model_validator(mode="after")
    def said_or_called(self) -> Self:
        """Only an answer that called tools may have said nothing."""
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise conflict("content", f"A message of role {self.role!r} needs content: a string or a list of parts.")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as templates read it; developers speak as the system."""
        content = self.content
        text = "".join(part.text for part in content) if isinstance(content, list) else content
        plain = self.model_dump(exclude_none=True) | {"content": text}
        return plain | {"role": "system"} if self.role == "developer" else plain


class FunctionBody(Strict):
    """A function the model may call; parameters are a JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Strict):
    """A tool the model may use."""

    type: Literal["function"]
    function: FunctionBody


class ChosenFunction(Strict):
    """A function by name."""

    name: Name


class ToolChoiceBody(Strict):
    """The one tool that must be used."""

    type: Literal["function"]
    function: ChosenFunction


class ChatBody(GeneratingBody):
    """A conversation to be answered."""

    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)] = Field(
        description="the conversation, oldest first"
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="most generated tokens, thoughts included")
    logprobs: bool | None = Field(None, description="return log-probabilities")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="alternatives beside each token's own")
    tools: Annotated[list[ToolBody], Field(max_length=128, fail_fast=True)] | None = Field(
        None, description="what may be called"
    )
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceBody | None = Field(
        None, description="whether and what to call; auto where there are tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="several calls in one answer")

    @model_validator(mode="after")
    def top_logprobs_belong_to_logprobs(self) -> Self:
        """Alternatives are shown beside the tokens' own."""
        if self.top_logprobs is not None and not self.logprobs:
            raise conflict("top_logprobs", "top_logprobs needs logprobs=true.")
        return self

    @model_validator(mode="after")
    def one_budget(self) -> Self:
        """Both names mean the same."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise conflict("max_completion_tokens", "max_tokens and max_completion_tokens differ: keep one.")
        return self

    @model_validator(mode="after")
    def tool_choices_have_tools(self) -> Self:
        """Without tools there is nothing to choose."""
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(self, name) is not None and not self.tools:
                raise conflict(name, f"{name} needs tools.")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def written(self) -> dict[str, tuple[str, ...]]:
        written = super().written()
        if self.tools and self.grammar is None:  # one is made of the tools and of the constraint beside them
            beside = (fields for name in self.constraint() for fields in written.get(name, (name,)))
            written["grammar"] = ("tools", *beside)
        return written

    def sampling(self) -> dict[str, Any]:
        fields = super().sampling()
        if self.most_tokens is not None:
            fields["max_tokens"] = self.most_tokens
        if self.logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        return fields
