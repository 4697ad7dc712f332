"""`recipe.*`: the model's two classes, each named as `package.module:Class` and checking its own keys.

The class's attribute `Config`, a pydantic model, validates every key beside `type`. A target's Config has `geometry`
with `context` (tokens the model was made for); a drafter's Config has `max_depth` (most drafts of one round).
"""

from typing import Any

from pydantic import BaseModel, Field, ImportString, TypeAdapter, model_validator

from flare.config.section import Section

Class = type[Any]
_CLASS = TypeAdapter(ImportString[Class])


class Part(Section):
    """A class and its settings, validated by the class's own Config."""

    type: Class = Field(description="the class, as package.module:Class")
    settings: Any = Field(description="an instance of the class's own Config")

    @model_validator(mode="before")
    @classmethod
    def the_class_checks_the_rest(cls, raw: Any) -> Any:
        """Import what `type` names and let its Config read the keys beside it."""
        if not isinstance(raw, dict) or "type" not in raw:
            raise ValueError("type is missing: name the class as package.module:Class")
        named = import_class(raw["type"])
        rest = {key: value for key, value in raw.items() if key != "type"}
        return {"type": named, "settings": named.Config.model_validate(rest, extra="forbid")}


def import_class(name: str) -> Any:
    """Import `package.module:Class`; the class must bring a pydantic model named Config.

    Raises:
        pydantic.ValidationError: the name cannot be imported.
        ValueError: what was imported has no Config.
    """
    named = _CLASS.validate_python(name)
    if not (isinstance(getattr(named, "Config", None), type) and issubclass(named.Config, BaseModel)):
        raise ValueError(f"{name} has no Config: a part's class brings a pydantic model of that name")
    return named


class Recipe(Section):
    """What makes this model this model."""

    name: str = Field(min_length=1, description="name of the recipe, and of its run folders")
    target: Part = Field(description="the served model: type, and the keys of its class")
    drafter: Part | None = Field(description="what proposes tokens: type, and the keys of its class; null has none")
    default_draft_tokens: int = Field(
        ge=0, description="drafts the recipe recommends: its own serving.mtp_draft_tokens, filled in by composition"
    )
