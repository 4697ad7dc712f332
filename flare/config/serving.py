"""`serving.*`: what is selected from the prepared core, and how requests reach it."""

from pydantic import Field

from flare.config.section import Section


class Serving(Section):
    """Selections and policies of one running engine."""

    concurrency: int = Field(ge=1, description="requests that run at a time; the others queue")
    mtp_draft_tokens: int = Field(ge=0, description="most drafts offered in a round; 0 decodes one token at a time")
    adaptive_verification: bool = Field(description="choose each round's width from measured survival and cost")
    fixed_width: int | None = Field(
        ge=1, description="one prepared width for every round that admits it; null leaves it open"
    )
    history_drafts: bool = Field(description="draft by copying from text that this engine generated before")
    context_drafts: bool = Field(description="draft by copying from the request's own prompt and output")
    exploration_share: float = Field(
        ge=0, le=1, description="share of the time saved that may be spent on measuring widths"
    )
    model_name: str | None = Field(description="name shown to users; null is the recipe's")
