"""The body of /v1/completions."""

from typing import Annotated

from pydantic import Field

from flare.server.wire.fields import GeneratingBody, TokenId

Ids = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]


class CompletionBody(GeneratingBody):
    """Text, token ids, or a list of either, to be continued."""

    prompt: str | Ids | Prompts = Field(description="what to continue")
    logprobs: int | None = Field(None, ge=0, le=20, description="log-probabilities of this many likely tokens")
    echo: bool | None = Field(None, description="begin each text with its prompt")

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        return [given] if isinstance(given[0], int) else list(given)  # pyright: ignore[reportReturnType]
