"""Applying a settled launch to its requests: tokens, sources, counts, text, and how a request ends.

Settling comes in two parts. `settle` does what the next round needs; `present` decodes text and fills events while that
round already runs. Where a stop string may end the request, its text is decoded in the first part.
"""

from dataclasses import dataclass, field
from time import perf_counter

from flare.contract.frames import Completion, HostArray, Source, Terminal
from flare.errors import RequestError
from flare.runtime.copies import Copies
from flare.runtime.frames.reading import SOURCE_NAMES, Record, ended_by, read_logprobs, read_record
from flare.runtime.launches import Launch
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
    if record.fault:
        request.error = RequestError(
            f"Request {request.id} met a law without mass: no token is allowed or logits are not finite."
        )
        return addition
    if request.host_stops:
        record = decode_text(addition)
    addition.record = record
    addition.logprobs = read_logprobs(completion, request, len(record.tokens))
    addition.sources = record.token_sources() if launch.is_round else ["prefill"]
    request.tokens += record.tokens
    request.sources += addition.sources
    request.logprobs += addition.logprobs
    if launch.is_round:
        request.rounds.append(Round(record.width, record.offered, record.accepted, len(record.tokens), record.sources))
    copies.extend(request, record.tokens)
    if request.presenter.stopped or record.terminal == Terminal.STOP:
        request.finish_reason = "stop"
    elif record.terminal == Terminal.LENGTH:
        request.finish_reason = "length"
    return addition


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
    if record.terminal and not presenter.stopped:
        addition.texts[-1] += presenter.finish()
    addition.presented = True
    return record


def present(addition: Addition) -> None:
    """Queue the event that tells the caller; the last one carries the completion."""
    request, record = addition.request, addition.record
    if not addition.presented:
        decode_text(addition)
    request.last_s = perf_counter()
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
