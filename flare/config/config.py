"""The whole configuration, and what its "auto" values come to."""

from typing import Literal

from pydantic import Field, model_validator

from flare.config.checkpoint import Checkpoint
from flare.config.preparation import Preparation
from flare.config.recipe import Recipe
from flare.config.sampling import Sampling
from flare.config.section import LITERAL, Section
from flare.config.serving import Serving
from flare.config.workload import Workload


class Config(Section):
    """Everything a run is told. Methods answer with numbers: no "auto" leaves this class."""

    action: Literal["generate", "chat", "serve", "plan", "bench", "synthesize"] = Field(description="what to do")
    prompt: str | None = Field(json_schema_extra=LITERAL, description="text to answer; - reads standard input")
    raw: bool = Field(description="give the model the prompt as written; false makes it a user's turn of a chat")
    prompts: str | None = Field(description="JSON-lines file of prompts to answer as a batch")
    output: Literal["rich", "text", "json"] = Field(
        description="rich for people, text for pipes, json one object a completion"
    )
    recipe: Recipe = Field(description="the model: target and drafter")
    checkpoint: Checkpoint = Field(description="where the stored weights come from")
    preparation: Preparation = Field(description="what is allocated and captured")
    serving: Serving = Field(description="what is selected from the prepared core")
    sampling: Sampling = Field(description="how tokens are drawn, unless a request says otherwise")
    workload: Workload = Field(description="what action=bench measures")

    def device(self, cuda_available: bool) -> Literal["cpu", "cuda"]:
        """Where the core lives; what only a CPU can hold stays there."""
        wished = self.preparation
        if wished.device == "auto":
            portable = wished.dtype != "float64" and wished.linear_format != "int4"
            return "cuda" if cuda_available and portable else "cpu"
        return wished.device

    def dtype(self) -> Literal["bfloat16", "float32", "float64"]:
        """Numbers of weights and state."""
        return "bfloat16" if self.preparation.dtype == "auto" else self.preparation.dtype

    def threads(self) -> int | None:
        """CPU threads of one round; None leaves torch's own choice."""
        return None if self.preparation.threads == "auto" else self.preparation.threads

    def concurrency(self) -> int:
        """Requests the core is prepared for."""
        prepared = self.preparation.concurrency
        return self.serving.concurrency if prepared == "auto" else prepared

    def context_length(self) -> int:
        """Tokens one request may hold."""
        wished = self.preparation.context_length
        return self.recipe.target.settings.geometry.context if wished == "auto" else wished

    def prefill_capacities(self, device: Literal["cpu", "cuda"]) -> tuple[int, ...]:
        """Prompt tokens of each prepared prefill, increasing."""
        wished = self.preparation.prefill_capacities
        if wished != "auto":
            return wished
        return (512, 4096) if device == "cuda" else (16, 64, 256, 512)

    def drafter_depth(self) -> int:
        """Most drafts the prepared drafter can make in a round; 0 without one."""
        if self.recipe.drafter is None or not self.preparation.mtp:
            return 0
        return self.recipe.drafter.settings.max_depth

    def widths(self) -> tuple[int, ...]:
        """Prepared widths, increasing from 1, that one request fits within the speculative token capacity."""
        wished, bound = self.preparation.speculative_widths, self.preparation.mtp_draft_tokens
        if wished == "auto":
            covered = max(self.recipe.default_draft_tokens, self.serving.mtp_draft_tokens) if bound == "auto" else bound
            wished = range(1, min(covered, self.drafter_depth()) + 2)
        most = min(self.preparation.speculative_token_capacity, self.drafter_depth() + 1)
        if bound != "auto":
            most = min(most, bound + 1)
        return tuple(width for width in wished if width == 1 or width <= most)

    def depth(self) -> int:
        """Most drafts served in a round: serving.mtp_draft_tokens, where a prepared width holds that many."""
        return max(width - 1 for width in self.widths() if width - 1 <= self.serving.mtp_draft_tokens)

    def model_name(self) -> str:
        """The name HTTP clients see."""
        return self.serving.model_name or self.recipe.name

    @model_validator(mode="after")
    def depth_fits_the_drafter(self) -> "Config":
        """No key may ask for more drafts than the drafter's class allows."""
        drafter, name = self.recipe.drafter, self.recipe.name
        most = 0 if drafter is None else drafter.settings.max_depth
        stops = f"{name} has no drafter" if drafter is None else f"{name}'s drafter stops at {most}"
        for key, depth in (
            ("serving.mtp_draft_tokens", self.serving.mtp_draft_tokens),
            ("preparation.mtp_draft_tokens", self.preparation.mtp_draft_tokens),
        ):
            if isinstance(depth, int) and depth > most:
                raise ValueError(f"{key}={depth}, but {stops}")
        widths = self.preparation.speculative_widths
        if widths != "auto" and widths[-1] > most + 1:
            raise ValueError(
                f"preparation.speculative_widths=[{_listed(widths)}], but {stops}: the widest round has {most + 1} rows"
            )
        return self

    @model_validator(mode="after")
    def fixed_width_is_prepared(self) -> "Config":
        """A fixed width selects one of the prepared ones, within the served depth."""
        fixed, widths, drafts = self.serving.fixed_width, self.widths(), self.serving.mtp_draft_tokens
        if fixed is not None and fixed not in widths:
            nearest = min(widths, key=lambda width: abs(width - fixed))
            raise ValueError(
                f"serving.fixed_width={fixed}, but the prepared widths are {_listed(widths)}; the nearest is {nearest}"
            )
        if fixed is not None and fixed > drafts + 1:
            raise ValueError(
                f"serving.fixed_width={fixed} needs {fixed - 1} drafts, "
                f"but serving.mtp_draft_tokens={drafts} offers fewer"
            )
        return self

    @model_validator(mode="after")
    def serving_concurrency_is_prepared(self) -> "Config":
        """Serving selects from what was prepared."""
        if self.serving.concurrency > self.concurrency():
            raise ValueError(
                f"serving.concurrency={self.serving.concurrency}, "
                f"but preparation.concurrency={self.preparation.concurrency} prepares for no more"
            )
        return self

    @model_validator(mode="after")
    def context_fits_the_model(self) -> "Config":
        """Positions beyond the model's own context mean nothing to it."""
        wished, most = self.preparation.context_length, self.recipe.target.settings.geometry.context
        if wished != "auto" and wished > most:
            raise ValueError(f"preparation.context_length={wished}, but {self.recipe.name}'s context ends at {most}")
        return self

    @model_validator(mode="after")
    def mtp_only_has_drafts_to_serve(self) -> "Config":
        """Without ordinary decoding, zero drafts would leave nothing to run."""
        if self.preparation.mtp_only and self.serving.mtp_draft_tokens == 0:
            raise ValueError(
                "serving.mtp_draft_tokens=0 decodes ordinarily, but preparation.mtp_only=true prepares no such graph"
            )
        return self

    @model_validator(mode="after")
    def one_source_of_prompts(self) -> "Config":
        """A prompt is typed or read from a file."""
        if self.prompt is not None and self.prompts is not None:
            raise ValueError("prompt and prompts exclude each other; keep one")
        return self


def _listed(widths: tuple[int, ...]) -> str:
    return ",".join(map(str, widths))
