"""`preparation.*`: what is allocated and captured; it bounds what `serving.*` may select.

A change here makes another core.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, TypeAdapter, model_validator

from flare.config.section import Section

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
_SIZE = TypeAdapter(ByteSize)


def _size(value: Any) -> Any:
    return int(_SIZE.validate_python(value)) if isinstance(value, str) and value != "auto" else value


Bytes = Annotated[int, Field(ge=0), BeforeValidator(_size)]
Counts = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]


class Preparation(Section):
    """Bounds of a core: device, numbers, capacities, memory."""

    device: Literal["auto", "cpu", "cuda"] = Field(description="where the core lives; auto takes CUDA when present")
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = Field(
        description="numbers of weights and state; auto is bfloat16, float64 is for a CPU"
    )
    linear_format: Literal["dense", "int4"] = Field(
        description="storage of linear weights on a CPU: dense keeps dtype, int4 is smaller, faster and not exact"
    )
    threads: Auto | Count = Field(description="CPU threads of one round; auto leaves the choice to torch")
    concurrency: Auto | Count = Field(description="requests prepared for, >= 1; auto is serving.concurrency")
    context_length: Auto | Count = Field(description="tokens a request may hold; auto is all the model was made for")
    prefill_capacities: Auto | Counts = Field(
        description="prompt tokens of the prefills, increasing; auto is 16,64,256,512 on a CPU, 512,4096 on CUDA"
    )
    speculative_widths: Auto | Counts = Field(
        description="target rows per request of the prepared rounds, from 1, increasing; auto covers recipe and serving"
    )
    speculative_token_capacity: Count = Field(description="most target rows (requests x width) of one prepared round")
    mtp: bool = Field(description="prepare the recipe's drafter")
    mtp_only: bool = Field(description="prepare no ordinary decoding beside the speculative rounds")
    mtp_draft_tokens: Auto | Annotated[int, Field(ge=0)] = Field(
        description="most drafts a prepared round carries; auto covers recipe and serving, 0 only keeps draft state"
    )
    prompt_logprobs: bool = Field(description="prepare prompt chunks that also return the prompt's log-probabilities")
    memory_bytes: Auto | Bytes = Field(description="memory to plan for, in bytes or as 24GiB; auto asks the device")
    headroom_bytes: Bytes = Field(description="memory left untouched, in bytes or as 1GiB")
    snapshot_bytes: Auto | Bytes = Field(
        description="most memory for snapshots of prefixes, 0 keeps none; auto is 1/4 of what one full context leaves"
    )

    @model_validator(mode="after")
    def widths_start_at_one_and_increase(self) -> "Preparation":
        """Width one holds the pending token alone; every round falls back to it."""
        widths = self.speculative_widths
        if widths != "auto" and (widths[0] != 1 or list(widths) != sorted(set(widths))):
            raise ValueError(
                f"preparation.speculative_widths={_listed(widths)}, but widths must start at 1 and increase; "
                f"the nearest list is {_listed(sorted({1, *widths}))}"
            )
        return self

    @model_validator(mode="after")
    def prefill_capacities_increase(self) -> "Preparation":
        """A prompt chunk takes the smallest capacity that holds it."""
        capacities = self.prefill_capacities
        if capacities != "auto" and list(capacities) != sorted(set(capacities)):
            raise ValueError(
                f"preparation.prefill_capacities={_listed(capacities)}, but capacities must increase; "
                f"the nearest list is {_listed(sorted(set(capacities)))}"
            )
        return self

    @model_validator(mode="after")
    def formats_suit_the_device(self) -> "Preparation":
        """float64 and int4 linear weights exist on a CPU only."""
        if self.device == "cuda" and self.dtype == "float64":
            raise ValueError("preparation.dtype=float64 needs preparation.device=cpu; CUDA takes bfloat16 or float32")
        if self.device == "cuda" and self.linear_format == "int4":
            raise ValueError("preparation.linear_format=int4 needs preparation.device=cpu; CUDA takes dense")
        return self

    @model_validator(mode="after")
    def mtp_only_keeps_the_drafter(self) -> "Preparation":
        """Without a drafter and without ordinary decoding nothing would be left to run."""
        if self.mtp_only and not self.mtp:
            raise ValueError("preparation.mtp_only=true needs preparation.mtp=true: nothing else would be prepared")
        return self


def _listed(values: tuple[int, ...] | list[int]) -> str:
    return "[" + ",".join(map(str, values)) + "]"
