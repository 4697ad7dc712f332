"""Frames: the arrays that carry a round's arguments to the device and its completion back.

A frame is one contiguous buffer per direction, cut into named arrays by a layout that host and device compute from the
same `Extent`. So one transfer moves all of it, and both sides name the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from flare.contract.manifest import Extent
from flare.contract.policies import BIAS_ENTRIES, STOP_IDS

Array = TypeVar("Array")  # NumPy on the host, torch on the device: the same names over the same bytes
HostArray = NDArray[Any]

COPY_TOKENS = 14  # one anchored continuation serves two queued rounds of seven drafts
ALIGNMENT_BYTES = 64


class Scalar(IntEnum):
    """Places in `Arguments.scalars`: what a prefill, resume or init graph reads for its one lane."""

    TOKEN_COUNT = 0  # tokens of this chunk (prefill, resume), or of prompt + generated (init)
    PROMPT_TOKENS = 1  # init: how many of the tokens are prompt
    REQUEST_ID = 2
    TOP_K = 3
    MIN_TOKENS = 4
    MAX_TOKENS = 5
    SEED = 6
    PLAIN = 7
    LOGPROBS = 8
    GENERATED = 9  # init of a resumed request: tokens sampled so far, the pending one included; else 0
    ORDINARY_EVENTS = 10  # events of the three Philox domains a resumed request has spent; else 0
    PROPOSAL_EVENTS = 11
    VERIFY_EVENTS = 12
    BIAS_COUNT = 13
    CONSUMED = 14  # restore: tokens P whose state the snapshot holds
    COPY_FROM = 15  # restore: the page that ends a partial prefix and the private page it is copied to; else both null
    COPY_TO = 16
    SAMPLE = 17  # restore, scored_prefill: whether the first token is sampled from the law after the last row


class Real(IntEnum):
    """Places in `Arguments.reals`: the real-valued policy an init graph reads."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    PRESENCE = 4
    FREQUENCY = 5


class Field(IntEnum):
    """The sixteen metadata fields at the head of a completion record."""

    REQUEST_ID = 0
    GENERATION = 1
    CONSUMED = 2
    GENERATED = 3
    TERMINAL = 4
    EMITTED = 5
    OFFERED = 6
    ACCEPTED = 7
    SOURCES = 8  # two bits per depth: the `Source` of each offered draft
    DRAFT_POSITION = 9
    WIDTH = 10
    GRAPH = 11
    ROUND = 12  # rounds this request has executed, this one included
    FLAGS = 13
    RESERVED_0 = 14
    RESERVED_1 = 15


RECORD_FIELDS = len(Field)


class Terminal(IntEnum):
    """Why the device ended a request."""

    LIVE = 0
    STOP = 1  # an EOS or stop id was emitted
    LENGTH = 2  # the output budget is spent


class Source(IntEnum):
    """Where a draft came from; two bits in `Field.SOURCES`."""

    LEARNED = 0
    HISTORY = 1
    CONTEXT = 2
    FORCED = 3  # the only continuation a grammar allows


class Flag(IntEnum):
    """Bits of `Field.FLAGS`."""

    FAULT = 1  # the target's output was not finite: the emitted tokens mean nothing
    BOUNDARY = 2  # the lane's snapshot row now holds the state at the last multiple of 64 up to `CONSUMED`


def argument_arrays(extent: Extent) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every argument array, in buffer order."""
    lanes = extent.lanes
    return {
        "lanes": ((lanes,), "int64"),
        "generations": ((lanes,), "int64"),
        "ceilings": ((lanes,), "int64"),
        "copy_position": ((lanes,), "int64"),
        "copy_before": ((lanes,), "int64"),
        "copy_length": ((lanes,), "int64"),
        "copy_source": ((lanes,), "int64"),
        "copy_tokens": ((lanes, COPY_TOKENS), "int64"),
        "boundary_slots": ((lanes,), "int64"),
        "page_tables": ((lanes, extent.pages_per_request), "int32"),
        "masked": ((lanes,), "int32"),
        "masks": ((lanes, extent.width, extent.mask_words), "int32"),
        "scalars": ((len(Scalar),), "int64"),
        "reals": ((len(Real),), "float32"),
        "stop_ids": ((STOP_IDS,), "int64"),
        "bias_ids": ((BIAS_ENTRIES,), "int64"),
        "bias_values": ((BIAS_ENTRIES,), "float32"),
        "tokens": ((extent.context,), "int64"),
    }


def completion_arrays(extent: Extent) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every completion array; row `slots` belongs to the null slot and is never read."""
    slots = extent.slots + 1
    return {
        "records": ((slots, RECORD_FIELDS + extent.width), "int64"),
        "logprobs": ((slots, extent.width, 1 + extent.logprobs), "float32"),
        "logprob_ids": ((slots, extent.width, 1 + extent.logprobs), "int64"),
        "prompt_logprobs": ((extent.scored_chunk, 1 + extent.logprobs), "float32"),
        "prompt_logprob_ids": ((extent.scored_chunk, 1 + extent.logprobs), "int64"),
    }


@dataclass(frozen=True)
class Region:
    """Where one array lies in its frame's buffer."""

    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the array itself."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def layout(arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> tuple[dict[str, Region], int]:
    """Cut a buffer into aligned regions; returns them with the buffer's total bytes."""
    regions: dict[str, Region] = {}
    offset = 0
    for name, (shape, dtype) in arrays.items():
        regions[name] = region = Region(shape, dtype, offset)
        offset += -(-region.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return regions, offset


def views(buffer: NDArray[np.uint8], regions: Mapping[str, Region]) -> dict[str, HostArray]:
    """The named arrays as views of one byte buffer."""
    return {
        name: buffer[region.offset_bytes : region.offset_bytes + region.size_bytes]
        .view(region.dtype)
        .reshape(region.shape)
        for name, region in regions.items()
    }


@dataclass(frozen=True)
class Arguments(Generic[Array]):
    """A frame's inputs, views of its buffer. The host fills what its graph reads and resets what it no longer names.

    Attributes:
        lanes: [L] slot of each lane; padded lanes name the null slot.
        generations: [L] must match the slot's generation, else the lane is dead.
        ceilings: [L] most drafts the lane may offer this round.
        copy_position, copy_before, copy_length, copy_source, copy_tokens: an anchored continuation per lane: tokens
            from absolute position A, the token before A, how many are real (0: none), their `Source`.
        boundary_slots: [L] snapshot row (`Extent.snapshot_row`), -1 for none. A round writes it where a lane crosses a
            multiple of 64 (or ends on one); prefill, resume and snapshot write it with the state they leave; restore
            reads it.
        page_tables: [L, pages_per_request] int32; unused entries name the null page.
        masked, masks: [L] whether the lane's rows are masked; [L, W, words] bit masks of allowed tokens.
        scalars, reals, stop_ids, bias_ids, bias_values, tokens: one request's chunk or admission, see `Scalar`, `Real`.
    """

    lanes: Array
    generations: Array
    ceilings: Array
    copy_position: Array
    copy_before: Array
    copy_length: Array
    copy_source: Array
    copy_tokens: Array
    boundary_slots: Array
    page_tables: Array
    masked: Array
    masks: Array
    scalars: Array
    reals: Array
    stop_ids: Array
    bias_ids: Array
    bias_values: Array
    tokens: Array


@dataclass(frozen=True)
class Completion(Generic[Array]):
    """A frame's outputs, views owned until the frame is released.

    Attributes:
        records: [slots + 1, 16 + W] int64: the metadata of `Field`, then emitted tokens padded with -1.
        logprobs, logprob_ids: [slots + 1, W, 1 + n]: the emitted token first, then the n likeliest.
        prompt_logprobs, prompt_logprob_ids: [chunk, 1 + n], written by scored_prefill alone: row i is about the token
            after the chunk's i-th, that token first. So the host writes the token after the chunk behind it in
            `Arguments.tokens`; behind the prompt's last one there is none, and the last row means nothing.
    """

    records: Array
    logprobs: Array
    logprob_ids: Array
    prompt_logprobs: Array
    prompt_logprob_ids: Array


def host_arguments(extent: Extent) -> Arguments[HostArray]:
    """Fresh zeroed host arrays; a device with pinned memory builds its own with `views`."""
    regions, total_bytes = layout(argument_arrays(extent))
    return Arguments(**views(np.zeros(total_bytes, np.uint8), regions))


def host_completion(extent: Extent) -> Completion[HostArray]:
    """Fresh zeroed host arrays."""
    regions, total_bytes = layout(completion_arrays(extent))
    return Completion(**views(np.zeros(total_bytes, np.uint8), regions))
