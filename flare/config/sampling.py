"""`sampling.*`: how tokens are drawn and where a completion ends, unless a request says otherwise."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from flare.config.section import LITERAL, Section

TokenId = Annotated[int, Field(ge=0)]


def _one_or_many(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str | int) else value


def _ids(value: Any) -> Any:
    """One id typed alone arrives as text, like everything that may be a list."""
    many = _one_or_many(value)
    return tuple(int(id) if isinstance(id, str) and id.isdecimal() else id for id in many) if many else many


def _numbered(value: Any) -> Any:
    """YAML and dotted overrides write token ids as text."""
    if isinstance(value, dict):
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: bias for key, bias in value.items()}
    return value


class Sampling(Section):
    """The law of one request and its limits."""

    temperature: float = Field(
        ge=0, allow_inf_nan=False, description="0 takes the most likely token, 1 the model's own law"
    )
    top_k: int = Field(ge=0, description="keep the k most likely tokens; 0 keeps all")
    top_p: float = Field(gt=0, le=1, description="keep the most likely tokens up to this probability; 1 keeps all")
    min_p: float = Field(
        ge=0, le=1, description="keep tokens at least this share as likely as the likeliest; 0 keeps all"
    )
    repetition_penalty: float = Field(
        gt=0, allow_inf_nan=False, description="divides the logits of seen tokens; 1 is off"
    )
    presence_penalty: float = Field(
        ge=-2, le=2, description="subtracted once from the logit of a generated token; 0 is off"
    )
    frequency_penalty: float = Field(
        ge=-2, le=2, description="subtracted per occurrence of a generated token; 0 is off"
    )
    logit_bias: Annotated[dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_numbered)] = Field(
        description="added to logits, token id to -100..100"
    )
    seed: int | None = Field(ge=0, le=2**63 - 1, description="names the random draws; null draws a fresh one")
    n: int = Field(ge=1, description="completions per prompt")
    max_tokens: int = Field(ge=1, description="most tokens of one completion")
    min_tokens: int = Field(ge=0, description="tokens before which no completion ends")
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_many)] = Field(
        strict=False, max_length=16, description="up to 16 texts that end a completion, themselves not shown"
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], BeforeValidator(_ids)] = Field(
        strict=False, max_length=16, description="up to 16 token ids that end a completion"
    )
    ignore_eos: bool = Field(description="go on after the model's own end token")
    logprobs: int | None = Field(
        ge=0, le=20, description="log probabilities of this many likely tokens; null gives none"
    )
    prompt_logprobs: int | None = Field(
        ge=0, le=20, description="the same for the tokens of the prompt; needs preparation.prompt_logprobs"
    )
    grammar: str | None = Field(json_schema_extra=LITERAL, description="Lark grammar that the text must follow")
    json_schema: str | None = Field(
        json_schema_extra=LITERAL, description="JSON schema, as JSON text, that the text must follow"
    )
    json_object: bool = Field(description="the text must be a JSON object")
    regex: str | None = Field(
        json_schema_extra=LITERAL, description="regular expression that the whole text must match"
    )
    constrain_after: str | None = Field(
        min_length=1, json_schema_extra=LITERAL, description="marker after which the constraint begins, </think> say"
    )

    @model_validator(mode="after")
    def at_most_one_constraint(self) -> "Sampling":
        """A text follows one grammar."""
        fields = ("grammar", "json_schema", "json_object", "regex")
        given = [name for name in fields if getattr(self, name) not in (None, False)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(f'sampling.{name}' for name in given)} exclude each other; keep one")
        return self

    @model_validator(mode="after")
    def min_tokens_fit_max_tokens(self) -> "Sampling":
        """A completion cannot be longer than its longest."""
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"sampling.min_tokens={self.min_tokens}, but sampling.max_tokens={self.max_tokens} ends it before"
            )
        return self
