"""Where constraints meet the rounds: what a lane is offered, the masks of its rows, and what its record counts."""

from collections.abc import Sequence

from flare.contract.frames import COPY_TOKENS, Arguments, HostArray, Source, Terminal
from flare.errors import RequestError
from flare.runtime.copies import NOTHING, Offer
from flare.runtime.frames.reading import Record, ended_by
from flare.runtime.requests import Request


def legal_offer(request: Request, offer: Offer) -> Offer:
    """The offer as the request's constraint allows it: the legal head of the copy, then forced tokens."""
    constraint = request.constraint
    if constraint is None or request.draft_limit == 0:
        return offer
    drafts = constraint.drafts(offer.tokens, COPY_TOKENS)
    if not drafts:
        return NOTHING
    return Offer(drafts, offer.source if constraint.copied_drafts else Source.FORCED)


def write_masks(
    arguments: Arguments[HostArray], requests: Sequence[Request], offers: Sequence[Offer], ceilings: Sequence[int]
) -> None:
    """Write the masks of every row that can emit; lanes without a constraint are marked unmasked.

    Args:
        requests: of the lanes, in order; the lanes after them are padded.
        offers, ceilings: of a speculative round; empty where one row samples.
    """
    arguments.masked[:] = 0
    for lane, request in enumerate(requests):
        if request.constraint is None:
            continue
        drafts = offers[lane].tokens[: ceilings[lane]] if offers else ()
        request.constraint.mask(arguments.masks[lane], drafts)
        arguments.masked[lane] = 1


def follow(request: Request, record: Record) -> Record:
    """Move the request's constraint over its record; the record as far as it counts.

    Sets `request.error` where the constraint cannot go on. Tokens after the end of the text are dropped.
    """
    constraint = request.constraint
    if constraint is None:
        return record
    copied = constraint.copied_drafts
    record = record._replace(sources=(*record.sources[:copied], *("forced" for _ in record.sources[copied:])))
    kept = constraint.commit(record.tokens, ended_by(record))
    if constraint.fault is not None:
        request.error = RequestError(f"Request {request.id} cannot follow its grammar: {constraint.fault}.")
    if kept < len(record.tokens):
        record = record.cut(kept)._replace(terminal=int(Terminal.LIVE))
    return record
