"""Writing a launch into a frame's arguments, touching only what the frame's last use left different."""

import numpy as np

from flare.contract.frames import Arguments, HostArray, Real, Scalar
from flare.contract.manifest import Extent
from flare.runtime.constraints.offers import write_masks
from flare.runtime.copies import Offer
from flare.runtime.launches import Launch
from flare.runtime.memory.radix import NONE
from flare.runtime.requests import Request


class FrameWriter:
    """What one frame's arguments hold between its uses: which request each lane names, with which slot and pages."""

    def __init__(self, extent: Extent) -> None:
        self._extent = extent
        self._named: list[tuple[Request, int] | None] = []

    def write(self, arguments: Arguments[HostArray], launch: Launch) -> None:
        """Fill what the launch's graph reads; lanes it does not use name the null slot and the null page."""
        if not self._named:
            self._blank(arguments)
        self._name_lanes(arguments, launch)
        self._name_rows(arguments, launch)
        if launch.graph.kind == "init":
            write_admission(arguments, launch.requests[0])
        elif launch.graph.kind in ("resume", "prefill", "scored_prefill"):
            write_chunk(arguments, launch)
        elif launch.graph.kind == "restore":
            write_restore(arguments, launch, self._extent.null_page)
        elif launch.offers:
            write_offers(arguments, launch)
        if launch.samples:
            write_masks(arguments, launch.requests, launch.offers, launch.ceilings)

    def _blank(self, arguments: Arguments[HostArray]) -> None:
        arguments.lanes[:] = self._extent.null_slot
        arguments.page_tables[:] = self._extent.null_page
        arguments.boundary_slots[:] = -1
        for array in (arguments.generations, arguments.ceilings, arguments.copy_length, arguments.masked):
            array[:] = 0
        self._named = [None] * self._extent.lanes

    def _name_lanes(self, arguments: Arguments[HostArray], launch: Launch) -> None:
        requests = launch.requests
        for lane, named in enumerate(self._named):
            request = requests[lane] if lane < len(requests) else None
            naming = (request, request.epoch) if request is not None else None
            if naming == named:
                continue
            self._named[lane] = naming
            if request is None:
                arguments.lanes[lane] = self._extent.null_slot
                arguments.generations[lane] = 0
                arguments.ceilings[lane] = 0
                arguments.copy_length[lane] = 0
                arguments.page_tables[lane] = self._extent.null_page
            else:
                arguments.lanes[lane] = request.slot
                arguments.generations[lane] = request.generation
                arguments.page_tables[lane] = request.table

    def _name_rows(self, arguments: Arguments[HostArray], launch: Launch) -> None:
        arguments.boundary_slots[:] = -1
        for lane, snapshot in enumerate(launch.rows):
            if snapshot != NONE:
                arguments.boundary_slots[lane] = self._extent.snapshot_row(snapshot)


def write_admission(arguments: Arguments[HostArray], request: Request) -> None:
    """An init graph's inputs: the tokens so far, which the penalties count, the whole policy, and the events spent."""
    policy, count = request.policy, len(request.tokens)
    scalars = arguments.scalars
    scalars[:] = 0
    scalars[Scalar.TOKEN_COUNT] = count
    scalars[Scalar.PROMPT_TOKENS] = request.prompt_tokens
    scalars[Scalar.GENERATED] = request.generated_tokens
    scalars[Scalar.ORDINARY_EVENTS] = request.ordinary_events
    scalars[Scalar.PROPOSAL_EVENTS] = scalars[Scalar.VERIFY_EVENTS] = request.round_events
    scalars[Scalar.REQUEST_ID] = request.id
    scalars[Scalar.TOP_K] = policy.top_k
    scalars[Scalar.MIN_TOKENS] = policy.min_tokens
    scalars[Scalar.MAX_TOKENS] = policy.max_tokens
    scalars[Scalar.SEED] = policy.seed
    scalars[Scalar.PLAIN] = policy.plain
    scalars[Scalar.LOGPROBS] = policy.logprobs
    scalars[Scalar.BIAS_COUNT] = len(policy.logit_bias)
    reals = arguments.reals
    reals[Real.TEMPERATURE] = policy.temperature
    reals[Real.TOP_P] = policy.top_p
    reals[Real.MIN_P] = policy.min_p
    reals[Real.REPETITION] = policy.repetition
    reals[Real.PRESENCE] = policy.presence
    reals[Real.FREQUENCY] = policy.frequency
    arguments.stop_ids[:] = -1
    arguments.stop_ids[: len(policy.stop_ids)] = policy.stop_ids
    for entry, (token, bias) in enumerate(policy.logit_bias):
        arguments.bias_ids[entry], arguments.bias_values[entry] = token, bias
    arguments.tokens[:count] = np.asarray(request.tokens, np.int64)


def write_restore(arguments: Arguments[HostArray], launch: Launch, null_page: int) -> None:
    """A restore graph's inputs: how long the prefix is, and the private page that its unfinished one is copied to."""
    request, scalars = launch.requests[0], arguments.scalars
    hit = request.trail.hit
    assert hit is not None
    copies = hit.copied != NONE
    scalars[Scalar.CONSUMED] = hit.consumed
    scalars[Scalar.COPY_FROM] = hit.copied if copies else null_page
    scalars[Scalar.COPY_TO] = request.pages[len(hit.shared)] if copies else null_page
    scalars[Scalar.SAMPLE] = launch.restored


def write_chunk(arguments: Arguments[HostArray], launch: Launch) -> None:
    """A prefill or resume graph's inputs: some of the tokens."""
    request, start, count = launch.requests[0], launch.start, launch.count
    arguments.scalars[Scalar.TOKEN_COUNT] = count
    arguments.tokens[:count] = np.asarray(request.tokens[start : start + count], np.int64)
    if launch.graph.kind == "scored_prefill":
        arguments.scalars[Scalar.SAMPLE] = launch.samples
        for token in request.tokens[start + count : start + count + 1]:
            arguments.tokens[count] = token  # the last row is about the token after the chunk


def write_offers(arguments: Arguments[HostArray], launch: Launch) -> None:
    """A speculative graph's inputs beside the lanes: ceilings and anchored continuations."""
    for lane, (request, offer, ceiling) in enumerate(zip(launch.requests, launch.offers, launch.ceilings, strict=True)):
        arguments.ceilings[lane] = ceiling
        write_offer(arguments, lane, request, offer)


def write_offer(arguments: Arguments[HostArray], lane: int, request: Request, offer: Offer) -> None:
    """Anchor a continuation behind the pending token, the last one the host knows."""
    count = len(offer.tokens)
    arguments.copy_length[lane] = count
    if count:
        arguments.copy_position[lane] = len(request.tokens)
        arguments.copy_before[lane] = request.tokens[-1]
        arguments.copy_source[lane] = offer.source
        arguments.copy_tokens[lane, :count] = offer.tokens
