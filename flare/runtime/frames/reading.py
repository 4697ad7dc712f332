"""Reading a completion: one request's record and logprobs, copied out before the frame is released."""

from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from flare.contract.frames import RECORD_FIELDS, Completion, Field, Flag, HostArray, Source, Terminal
from flare.runtime.requests import Request
from flare.runtime.results import Logprob, TokenSource

SOURCE_NAMES: dict[Source, TokenSource] = {
    Source.LEARNED: "learned",
    Source.HISTORY: "history",
    Source.CONTEXT: "context",
    Source.FORCED: "forced",
}
# In one call: every record of every round is read, and each name of an enum costs as much as a list item.
ACCOUNT = itemgetter(Field.REQUEST_ID, Field.GENERATION, Field.GENERATED, Field.CONSUMED)
OUTCOME = itemgetter(Field.EMITTED, Field.ACCEPTED, Field.OFFERED, Field.SOURCES, Field.TERMINAL, Field.WIDTH)
FLAGS, FAULT, BOUNDARY = int(Field.FLAGS), int(Flag.FAULT), int(Flag.BOUNDARY)


class Record(NamedTuple):
    """What one graph did for one request.

    Attributes:
        tokens: emitted ids; offered, accepted: drafts, cut at the end of the request.
        sources: of each offered draft.
        crossed: tokens consumed when the lane's snapshot row was written on the way, None where it was not.
    """

    tokens: list[int]
    accepted: int
    sources: tuple[TokenSource, ...]
    terminal: int
    width: int
    fault: bool
    crossed: int | None = None

    @property
    def offered(self) -> int:
        return len(self.sources)

    def cut(self, kept: int) -> "Record":
        """The same record with the request ending at its `kept`-th token: what came after it never counts."""
        if kept == len(self.tokens):
            return self
        return self._replace(tokens=self.tokens[:kept], accepted=min(self.accepted, kept), sources=self.sources[:kept])

    def token_sources(self) -> list[TokenSource]:
        """Where each emitted token came from: accepted drafts first, then the target's own."""
        own: TokenSource = "target"
        return list(self.sources[: self.accepted] + (own,) * (len(self.tokens) - self.accepted))


def read_record(completion: Completion[HostArray], request: Request) -> Record:
    """The request's record, checked against what the host knows.

    Raises:
        RuntimeError: the record belongs to another request or its counters disagree with the host's.
    """
    row: list[int] = completion.records[request.slot].tolist()
    emitted, accepted, offered, bits, terminal, width = OUTCOME(row)
    flags, consumed = row[FLAGS], len(request.tokens) + emitted - 1
    expected = (request.id, request.generation, consumed + 1 - request.prompt_tokens, consumed)
    found = ACCOUNT(row)
    if found != expected or not 1 <= emitted <= accepted + 1:
        raise RuntimeError(
            f"Slot {request.slot} reports (request, generation, generated, consumed) = {found} with {emitted} emitted "
            f"and {accepted} accepted; the host expects {expected}."
        )
    if emitted <= accepted:  # the device ended the request inside an accepted block
        accepted, offered = emitted, min(offered, emitted)
    return Record(
        tokens=row[RECORD_FIELDS : RECORD_FIELDS + emitted],
        accepted=accepted,
        sources=_source_names(bits, offered),
        terminal=terminal,
        width=width,
        fault=bool(flags & FAULT),
        crossed=consumed if flags & BOUNDARY else None,
    )


@lru_cache(maxsize=256)  # few of the mixtures happen
def _source_names(bits: int, offered: int) -> tuple[TokenSource, ...]:
    """The source of each offered draft, of two bits each."""
    return tuple(SOURCE_NAMES[Source(bits >> 2 * depth & 3)] for depth in range(offered))


def read_fault(completion: Completion[HostArray], request: Request) -> bool:
    """Whether a graph that emitted nothing for the request met logits that are not finite.

    Raises:
        RuntimeError: the record belongs to another request.
    """
    row: list[int] = completion.records[request.slot, :RECORD_FIELDS].tolist()
    found, expected = (row[Field.REQUEST_ID], row[Field.GENERATION]), (request.id, request.generation)
    if found != expected:
        raise RuntimeError(f"Slot {request.slot} reports (request, generation) = {found}; the host expects {expected}.")
    return bool(row[Field.FLAGS] & Flag.FAULT)


def read_logprobs(completion: Completion[HostArray], request: Request, kept: int) -> list[Logprob]:
    """Log-probabilities of the first `kept` emitted tokens; empty where none were asked for."""
    top = request.policy.logprobs
    if top < 0:
        return []
    slot = request.slot
    return _logprobs(completion.logprobs[slot, :kept], completion.logprob_ids[slot, :kept], top)


def read_prompt_logprobs(completion: Completion[HostArray], request: Request, start: int, count: int) -> list[Logprob]:
    """Log-probabilities of the prompt tokens after each of `count` scored ones, as far as the prompt goes."""
    if request.prompt_logprobs is None:
        return []
    rows = min(count, request.prompt_tokens - 1 - start)
    return _logprobs(completion.prompt_logprobs[:rows], completion.prompt_logprob_ids[:rows], request.prompt_logprobs)


def _logprobs(row_values: HostArray, row_ids: HostArray, top: int) -> list[Logprob]:
    values, ids = row_values[:, : top + 1].tolist(), row_ids[:, : top + 1].tolist()
    return [
        Logprob(tokens[0], row[0], tuple(zip(tokens[1:], row[1:], strict=True)))
        for tokens, row in zip(ids, values, strict=True)
    ]


def ended_by(record: Record) -> bool:
    """Whether the last emitted token is an id that ends the request, which is not part of its text."""
    return record.terminal == Terminal.STOP
