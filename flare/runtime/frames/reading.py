"""Reading a completion: one request's record and logprobs, copied out before the frame is released."""

from typing import NamedTuple

from flare.contract.frames import RECORD_FIELDS, Completion, Field, Flag, HostArray, Source, Terminal
from flare.runtime.requests import Request
from flare.runtime.results import Logprob, TokenSource

SOURCE_NAMES: dict[Source, TokenSource] = {
    Source.LEARNED: "learned",
    Source.HISTORY: "history",
    Source.CONTEXT: "context",
}


class Record(NamedTuple):
    """What one graph did for one request.

    Attributes:
        tokens: emitted ids; offered, accepted: drafts, cut at the end of the request.
        sources: of each offered draft.
    """

    tokens: list[int]
    accepted: int
    sources: tuple[TokenSource, ...]
    terminal: int
    width: int
    fault: bool

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
    emitted, accepted, offered = row[Field.EMITTED], row[Field.ACCEPTED], row[Field.OFFERED]
    generated = request.generated_tokens + emitted
    expected = (request.id, request.generation, generated, request.prompt_tokens + generated - 1)
    found = (row[Field.REQUEST_ID], row[Field.GENERATION], row[Field.GENERATED], row[Field.CONSUMED])
    if found != expected or not 1 <= emitted <= accepted + 1:
        raise RuntimeError(
            f"Slot {request.slot} reports (request, generation, generated, consumed) = {found} with {emitted} emitted "
            f"and {accepted} accepted; the host expects {expected}."
        )
    if emitted <= accepted:  # the device ended the request inside an accepted block
        accepted, offered = emitted, min(offered, emitted)
    bits = row[Field.SOURCES]
    return Record(
        tokens=row[RECORD_FIELDS : RECORD_FIELDS + emitted],
        accepted=accepted,
        sources=tuple(SOURCE_NAMES[Source(bits >> 2 * depth & 3)] for depth in range(offered)),
        terminal=row[Field.TERMINAL],
        width=row[Field.WIDTH],
        fault=bool(row[Field.FLAGS] & Flag.FAULT),
    )


def read_logprobs(completion: Completion[HostArray], request: Request, kept: int) -> list[Logprob]:
    """Log-probabilities of the first `kept` emitted tokens; empty where none were asked for."""
    top = request.policy.logprobs
    if top < 0:
        return []
    values = completion.logprobs[request.slot, :kept, : top + 1].tolist()
    ids = completion.logprob_ids[request.slot, :kept, : top + 1].tolist()
    return [
        Logprob(row_ids[0], row[0], tuple(zip(row_ids[1:], row[1:], strict=True)))
        for row_ids, row in zip(ids, values, strict=True)
    ]


def ended_by(record: Record) -> bool:
    """Whether the last emitted token is an id that ends the request, which is not part of its text."""
    return record.terminal == Terminal.STOP
