"""The body of /v1/completions."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from flare.server.wire.fields import GeneratingBody, TokenId

PROMPTS = 2048

Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, max_length=PROMPTS, fail_fast=True)]
IdLists = Annotated[list[Ids], Field(min_length=1, max_length=PROMPTS, fail_fast=True)]


def _kind(given: Any) -> str | None:
    """What a prompt is meant to be, told from its first entry; None where it can be nothing of this."""
    if not isinstance(given, list):
        return "text" if isinstance(given, str) else None
    first = given[0] if given else 0
    if isinstance(first, list):
        return "lists of ids"
    return "texts" if isinstance(first, str) else "ids"


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[IdLists, Tag("lists of ids")],
    Discriminator(
        _kind,
        custom_error_type="prompt_type",
        custom_error_message="Input should be a string, a list of strings, a list of token ids or a list of such lists",
    ),
]


class CompletionBody(GeneratingBody):
    """Text, token ids, or a list of either, to be continued."""

    prompt: Prompt = Field(description="what to continue")
    logprobs: int | None = Field(None, ge=0, le=20, description="log-probabilities of this many likely tokens")
    echo: bool | None = Field(None, description="begin each text with its prompt")

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        return [given] if isinstance(given[0], int) else list(given)  # pyright: ignore[reportReturnType]
