"""`serving.*`: what is selected from the prepared core, and how requests reach it."""

from typing import Literal

from pydantic import Field

from flare.config.preparation import Bytes
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
    prefix_cache: bool = Field(
        description="keep the state of prompts and answers, and resume from it where one returns"
    )
    exploration_share: float = Field(
        ge=0, le=1, description="share of the time saved that may be spent on measuring widths"
    )
    model_name: str | None = Field(description="name shown to users; null is the recipe's")
    tool_format: Literal[
        "auto",
        "none",
        "json",
        "hermes",
        "parameters",
        "glm",
        "deepseek",
        "deepseek_fenced",
        "dsml",
        "dsml_v4",
    ] = Field(description="how the model writes tool calls; auto asks the chat template, none refuses tools")
    reasoning_format: Literal["auto", "none", "think"] = Field(
        description="how the model marks its thoughts; think is <think>…</think>, auto asks the chat template"
    )
    host: str = Field(min_length=1, description="address that action=serve listens on; 0.0.0.0 is every one")
    port: int = Field(ge=0, le=65535, description="port that action=serve listens on; 0 takes a free one")
    queue_limit: int = Field(ge=0, description="completions that may wait for a place; more are answered 429")
    request_timeout_s: float = Field(gt=0, description="seconds a request may take, reading and queue included")
    max_body_bytes: Bytes = Field(description="largest request body, in bytes or as 8MiB")
    max_json_depth: int = Field(ge=8, le=128, description="deepest nesting of a request body")
    max_messages: int = Field(ge=1, description="most messages of one chat")
    speculation_metrics: Literal["none", "summary", "detailed"] = Field(
        description="what responses say of their drafts unless a request asks otherwise"
    )
    metrics_alias: Literal["vllm"] | None = Field(
        description="whose metric names /metrics tells beside its own; null is nobody's"
    )
