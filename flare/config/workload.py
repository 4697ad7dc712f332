"""`workload.*`: what `action=bench` measures, on which conversations and how often."""

from typing import Annotated, Literal

from pydantic import Field

from flare.config.section import Section

Part = Literal["arms", "stages", "rounds", "overhead", "versus"]
Category = Literal["chat", "reasoning", "code_editing", "json", "long_context", "identical_repeat"]
Copies = Literal["none", "history", "both"]
Count = Annotated[int, Field(ge=1)]


class Workload(Section):
    """One benchmark run. Which measurements exist is told in `conf/workload/default.yaml`."""

    parts: tuple[Part, ...] = Field(strict=False, min_length=1, description="measurements to make, in this order")
    arms: Literal["auto", "table", "own"] = Field(
        description="table is every width and copy setting, own what serving says; auto is own in a sweep, else table"
    )
    widths: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        strict=False, description="fixed widths of the table; the adaptive policy is always there"
    )
    copies: tuple[Copies, ...] = Field(strict=False, min_length=1, description="copy settings of the table")
    categories: tuple[Category, ...] = Field(strict=False, min_length=1, description="conversations to run")
    entries: Count | None = Field(description="most conversations of a category; null takes all")
    budget_tokens: Count | None = Field(description="most tokens of one answer; null keeps each turn's own budget")
    repeats: Count = Field(description="times every turn is answered by every arm")
    greedy: bool = Field(description="also measure the arms at temperature 0, once, in a table of their own")
    pairs: Count = Field(description="ABAB pairs of overhead and versus")
    contexts: tuple[Count, ...] = Field(strict=False, min_length=1, description="context lengths of the round costs")
    rounds: Count = Field(description="timed rounds of each width, law and context")
