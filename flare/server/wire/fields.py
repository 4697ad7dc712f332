"""Fields that completions and chat completions share, and how they become the engine's sampling."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flare.contract.policies import BIAS_ENTRIES, STOP_IDS
from flare.server.wire.mistakes import conflict

SEED_END = 2**63 - 1
STOPS = 16
MARK_CHARACTERS = 1024
SMALLEST, LARGEST = 2.0**-149, 2.0**100  # the device keeps reals in float32 and multiplies some of them

# Which ids there are depends on the model, so the routes check them.
TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": 2**31 - 1})]
Stop = Annotated[str, Field(min_length=1, max_length=MARK_CHARACTERS)]
MetricsLevel = Literal["none", "summary", "detailed"]


class Strict(BaseModel):
    """A JSON object with these keys and no others, of these types and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def one_unknown_key(cls, given: Any) -> Any:
        """An object of a million unknown keys is refused for the first of them, not for each."""
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in given if name not in known)
        return {name: given[name] for name in (*(known & given.keys()), unknown)}


class StreamOptions(Strict):
    """What a stream tells beside its text."""

    include_usage: bool = Field(False, description="end with a chunk that holds the usage of the whole request")
    continuous_usage_stats: bool = Field(False, description="hold the usage so far in every chunk")


class JsonSchema(Strict):
    """A named JSON schema; name, description and strict are labels, the schema is always followed."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class GeneratingBody(Strict):
    """What both generating routes take; a field left out or null takes the recipe's default."""

    model: str | None = Field(None, description="the served model; null is it")
    stream: bool | None = Field(None, description="send text as it comes, as server-sent events")
    stream_options: StreamOptions | None = Field(None, description="only with stream=true")
    n: int | None = Field(
        None, ge=1, le=128, description="completions per prompt; a seed counts up from one to the next"
    )
    max_tokens: int | None = Field(None, ge=1, description="most generated tokens")
    min_tokens: int | None = Field(None, ge=0, le=SEED_END, description="tokens before which no completion ends")
    temperature: float | None = Field(None, ge=0, le=LARGEST, description="0 takes the likeliest token")
    top_p: float | None = Field(None, ge=SMALLEST, le=1, description="keep the likeliest tokens up to this probability")
    top_k: int | None = Field(None, ge=-1, le=SEED_END, description="keep the k likeliest tokens; 0 and -1 keep all")
    min_p: float | None = Field(
        None, ge=0, le=1, description="keep tokens at least this share as likely as the likeliest"
    )
    seed: int | None = Field(None, ge=0, le=SEED_END, description="names the random draws")
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS, fail_fast=True)] | None = Field(
        None, description=f"up to {STOPS} strings that end a completion, themselves not shown"
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=STOP_IDS, fail_fast=True)] | None = Field(
        None, description="token ids that end a completion"
    )
    ignore_eos: bool | None = Field(None, description="go on after the model's own end token")
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="subtracted once from the logits of generated tokens"
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="subtracted per occurrence")
    repetition_penalty: float | None = Field(
        None, ge=SMALLEST, le=LARGEST, description="divides the logits of seen tokens; 1 is off"
    )
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=BIAS_ENTRIES),
        ]
        | None
    ) = Field(None, description="token id → what is added to its logit")
    response_format: ResponseFormat | None = Field(None, description="text, json_object or json_schema")
    regex: str | None = Field(None, min_length=1, description="extension: what the whole text must match")
    grammar: str | None = Field(None, min_length=1, description="extension: a Lark grammar for the text")
    json_schema: dict[str, Any] | None = Field(None, description="extension: a JSON schema for the text")
    constrain_after: str | None = Field(
        None,
        min_length=1,
        max_length=MARK_CHARACTERS,
        description="extension: marker after which the constraint begins",
    )
    speculation: bool | None = Field(None, description="extension: false offers no drafts of any source")
    max_draft_tokens: int | None = Field(None, ge=0, le=SEED_END, description="extension: most drafts in one round")
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MARK_CHARACTERS,
        description="extension: only requests with the same salt share cached prefixes and history",
    )
    return_token_ids: bool | None = Field(None, description="extension: token ids of prompt and completion")
    return_provenance: bool | None = Field(None, description="extension: text and draft source of every token")
    speculation_metrics: MetricsLevel | None = Field(
        None, description="extension: metrics.speculative_decoding in the response"
    )
    user: str | None = Field(None, max_length=256, description="written to the server's log beside the request")

    @model_validator(mode="after")
    def stream_options_belong_to_streams(self) -> Self:
        """Without a stream there is nothing to add to."""
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "stream_options needs stream=true.")
        return self

    @model_validator(mode="after")
    def one_constraint(self) -> Self:
        """A text follows one grammar."""
        given = [name for name in ("regex", "grammar", "json_schema") if getattr(self, name) is not None]
        if self.response_format is not None and self.response_format.type != "text":
            given.insert(0, "response_format")
        if len(given) > 1:
            raise conflict(given[1], f"{' and '.join(given)} exclude each other: keep one.")
        return self

    @model_validator(mode="after")
    def least_within_most(self) -> Self:
        """A completion cannot be kept from ending beyond its end."""
        most = self.most_tokens
        if None not in (self.min_tokens, most) and self.min_tokens > most:  # pyright: ignore[reportOperatorIssue]
            raise conflict(
                "min_tokens",
                f"min_tokens={self.min_tokens} is not allowed: it must be at most {most}, like max_tokens.",
            )
        return self

    @property
    def most_tokens(self) -> int | None:
        """Most generated tokens, by whichever name they were given."""
        return self.max_tokens

    @property
    def constrained(self) -> bool:
        """Whether the text must follow something."""
        return bool(self.constraint())

    def constraint(self) -> dict[str, Any]:
        """The sampling field that says what the text must follow."""
        wanted = self.response_format
        if isinstance(wanted, JsonObjectFormat):
            return {"json_object": True}
        if isinstance(wanted, JsonSchemaFormat):
            return {"json_schema": {} if wanted.json_schema.schema_ is None else wanted.json_schema.schema_}
        given = {"regex": self.regex, "grammar": self.grammar, "json_schema": self.json_schema}
        return {name: value for name, value in given.items() if value is not None}

    def written(self) -> dict[str, tuple[str, ...]]:
        """How the request writes sampling fields that it calls otherwise than the engine."""
        if isinstance(self.response_format, JsonSchemaFormat):
            return {"json_schema": ("response_format.json_schema.schema",)}
        return {"json_object": ("response_format",)} if self.response_format is not None else {}

    def sampling(self) -> dict[str, Any]:
        """The sampling fields that were given, without logprobs, which each route says in its own way."""
        given = {name: getattr(self, name) for name in _SAMPLED}
        if given["top_k"] == -1:
            given["top_k"] = 0
        return {name: value for name, value in given.items() if value is not None} | self.constraint()


_SAMPLED = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "constrain_after"),
    *("speculation", "max_draft_tokens", "cache_salt"),
)
