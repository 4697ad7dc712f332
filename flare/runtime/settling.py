"""Applying a settled launch to its requests: tokens, sources, counts, text, and how a request ends.

Settling comes in two parts. `settle` does what the next round needs; `present` decodes text and fills events while that
round already runs. Where a stop string may end the request, its text is decoded in the first part.
"""

from dataclasses import dataclass, field

from flare.contract.frames import Completion, HostArray, Source, Terminal
from flare.errors import RequestError
from flare.runtime.constraints.offers import follow
from flare.runtime.copies import Copies
from flare.runtime.frames.reading import (
    SOURCE_NAMES,
    Record,
    ended_by,
    read_fault,
    read_logprobs,
    read_prompt_logprobs,
    read_record,
)
from flare.runtime.launches import Launch
from flare.runtime.memory.boundaries import note_crossing
from flare.runtime.policy import LaneOutcome
from flare.runtime.requests import Request
from flare.runtime.results import Event, Logprob, Round, TokenSource

SOURCE_IDS = {name: source for source, name in SOURCE_NAMES.items()}


@dataclass(slots=True)
class Addition:
    """What a settled launch added to one request and its caller has not been told."""

    request: Request
    record: Record
    sources: list[TokenSource]
    logprobs: list[Logprob]
    texts: list[str] = field(default_factory=list)
    presented: bool = False


def settle(launch: Launch, completion: Completion[HostArray], request: Request, copies: Copies) -> Addition:
    """Commit what one lane emitted; sets `finish_reason` or `error` when the request ends.

    Tokens after a stop string are dropped here, before anything counts them.
    """
    record = read_record(completion, request)
    addition = Addition(request, record, [], [])
    if launch.graph.kind == "speculative":
        request.round_events += 1
    else:
        request.ordinary_events += 1
    if record.fault:
        request.error = without_mass(request)
        return addition
    addition.record = record = follow(request, record)
    if request.error is not None:
        return addition
    if request.host_stops:
        addition.record = record = decode_text(addition)
    addition.logprobs = read_logprobs(completion, request, len(record.tokens))
    is_round = launch.is_round
    addition.sources = record.token_sources() if is_round else ["prefill"]
    request.tokens += record.tokens
    request.sources += addition.sources
    request.logprobs += addition.logprobs
    if is_round:
        request.rounds.append(Round(record.width, record.offered, record.accepted, len(record.tokens), record.sources))
    copies.extend(request, record.tokens)
    if record.crossed is not None:
        note_crossing(request, record.crossed)
    if request.presenter.stopped or request.text_ended or record.terminal == Terminal.STOP:
        request.finish_reason = "stop"
    elif record.terminal == Terminal.LENGTH:
        request.finish_reason = "length"
    return addition


def settle_state(completion: Completion[HostArray], request: Request) -> None:
    """Check a launch that emitted nothing for its one request; sets `error` when that cannot go on."""
    if read_fault(completion, request):
        request.error = without_mass(request)


def without_mass(request: Request) -> RequestError:
    """What a record with a fault means."""
    return RequestError(f"Request {request.id} met a law without mass: no token is allowed or logits are not finite.")


def settle_scores(launch: Launch, completion: Completion[HostArray]) -> None:
    """Keep what a scored chunk says about its request's prompt, whether or not it samples."""
    if launch.graph.kind == "scored_prefill":
        request = launch.requests[0]
        del request.prompt_scores[launch.start + 1 :]  # of a prompt that was begun before the request was parked
        request.prompt_scores += read_prompt_logprobs(completion, request, launch.start, launch.count)


def lane_outcome(addition: Addition) -> LaneOutcome:
    """What the policy learns from a lane."""
    record = addition.record
    source = SOURCE_IDS[record.sources[0]] if record.sources else Source.LEARNED
    return LaneOutcome(addition.request.id, source, record.offered, record.accepted)


def decode_text(addition: Addition) -> Record:
    """Decode the record's tokens up to the first completed stop string; the record as far as it is kept."""
    presenter, record = addition.request.presenter, addition.record
    silent = len(record.tokens) - 1 if ended_by(record) else len(record.tokens)
    for index, token in enumerate(record.tokens):
        addition.texts.append(presenter.push(token) if index < silent else "")
        if presenter.stopped:
            record = record.cut(index + 1)
            break
    if (record.terminal or addition.request.text_ended) and not presenter.stopped:
        addition.texts[-1] += presenter.finish()
    addition.presented = True
    return record


def present(addition: Addition, now_s: float) -> None:
    """Queue the event that tells the caller; the last one carries the completion."""
    request, record = addition.request, addition.record
    if not addition.presented:
        decode_text(addition)
    request.last_s = now_s
    request.first_s = request.first_s or request.last_s
    if request.finish_reason is not None:
        request.completion = request.complete()
    request.events.append(
        Event(
            text="".join(addition.texts),
            token_ids=tuple(record.tokens),
            sources=tuple(addition.sources),
            texts=tuple(addition.texts),
            logprobs=tuple(addition.logprobs),
            finish_reason=request.finish_reason,
            completion=request.completion,
        )
    )


def present_cancelled(request: Request) -> None:
    """The last event of a request that was cancelled: the text still held."""
    request.finish_reason = "cancelled"
    text = request.presenter.finish()
    request.completion = request.complete()
    request.events.append(Event(text, finish_reason="cancelled", completion=request.completion))
