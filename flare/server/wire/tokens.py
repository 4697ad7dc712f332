"""The bodies of /tokenize and /detokenize."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from flare.server.wire.chat import MessageBody
from flare.server.wire.fields import Strict, TokenId
from flare.server.wire.mistakes import conflict


class TokenizeBody(Strict):
    """Text, or a conversation, to be split into tokens."""

    model: str | None = Field(None, description="the served model; null is it")
    prompt: str | None = Field(None, description="text as it stands; either this or messages")
    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="a conversation"
    )
    add_special_tokens: bool | None = Field(None, description="begin a prompt as the model wants it; true")
    add_generation_prompt: bool | None = Field(None, description="end messages with the answer's header; true")
    return_token_strs: bool | None = Field(None, description="return the text of every token too")

    @model_validator(mode="after")
    def one_of_both(self) -> Self:
        """Text or conversation, and what belongs to it."""
        if (self.prompt is None) == (self.messages is None):
            both = self.prompt is not None
            reason = "prompt and messages exclude each other: keep one." if both else "Give a prompt or messages."
            raise conflict("messages" if both else "prompt", reason)
        if self.messages is None and self.add_generation_prompt is not None:
            raise conflict("add_generation_prompt", "add_generation_prompt needs messages.")
        if self.prompt is None and self.add_special_tokens is not None:
            raise conflict("add_special_tokens", "add_special_tokens needs a prompt.")
        return self


class DetokenizeBody(Strict):
    """Tokens to be joined to text."""

    model: str | None = Field(None, description="the served model; null is it")
    tokens: Annotated[list[TokenId], Field(fail_fast=True)] = Field(description="token ids")
