"""Completion records: what a graph tells the host about each lane, in the exact format of the frames."""

from flare.bench.simulation.scripted.programs import Outcome
from flare.bench.simulation.scripted.table import ORDINARY, VERIFY, Row
from flare.contract.frames import RECORD_FIELDS, Arguments, Completion, Field, Flag, HostArray, Scalar
from flare.contract.manifest import ExecutionGraph, Extent


class RecordWriter:
    """Writes one row of a completion per lane."""

    def __init__(self, extent: Extent) -> None:
        self._width, self._alternatives = extent.width, extent.logprobs

    def write(self, completion: Completion[HostArray], graph: ExecutionGraph, row: Row, outcome: Outcome) -> None:
        """The record of one lane, and log-probabilities where the request asked for them."""
        fields = [0] * RECORD_FIELDS
        fields[Field.REQUEST_ID], fields[Field.GENERATION] = row.request, row.generation
        fields[Field.CONSUMED], fields[Field.GENERATED] = row.consumed, row.generated
        fields[Field.TERMINAL] = row.terminal
        fields[Field.EMITTED] = emitted = len(outcome.tokens)
        fields[Field.OFFERED], fields[Field.ACCEPTED] = outcome.offered, outcome.accepted
        fields[Field.SOURCES] = sum(source << 2 * depth for depth, source in enumerate(outcome.sources))
        fields[Field.DRAFT_POSITION] = max(row.consumed - 1, 0)
        fields[Field.WIDTH] = graph.token_capacity if graph.kind == "speculative" else 1
        fields[Field.GRAPH] = graph.id
        fields[Field.ROUND] = row.events[ORDINARY] + row.events[VERIFY]
        fields[Field.FLAGS] = int(Flag.BOUNDARY) if outcome.wrote_boundary else 0
        completion.records[row.slot] = [*fields, *outcome.tokens, *(-1,) * (self._width - emitted)]
        if row.logprobs >= 0 and emitted:
            self._write_logprobs(completion, row, outcome)

    def write_scores(self, completion: Completion[HostArray], arguments: Arguments[HostArray], row: Row) -> None:
        """What a scored chunk says of the token after each of its own, as the host wrote that token."""
        count = int(arguments.scalars[Scalar.TOKEN_COUNT])
        following = arguments.tokens[1 : count + 1].tolist()
        begin = row.consumed - count
        for place, token in enumerate(following):
            completion.prompt_logprob_ids[place] = [token, *range(self._alternatives)]
            completion.prompt_logprobs[place] = [-1.0 - begin - place, *range(self._alternatives)]

    def mark_fault(self, completion: Completion[HostArray], row: Row) -> None:
        """Say that the lane's output was not finite."""
        completion.records[row.slot, Field.FLAGS] |= int(Flag.FAULT)

    def mark_stale(self, completion: Completion[HostArray], row: Row) -> None:
        """Leave the record of an earlier holder of the slot, with tokens that mean nothing."""
        completion.records[row.slot, Field.GENERATION] -= 1
        emitted = completion.records[row.slot, Field.EMITTED]
        completion.records[row.slot, RECORD_FIELDS : RECORD_FIELDS + emitted] = 0

    def _write_logprobs(self, completion: Completion[HostArray], row: Row, outcome: Outcome) -> None:
        first = row.generated - len(outcome.tokens)
        for place, token in enumerate(outcome.tokens):
            completion.logprob_ids[row.slot, place] = [token, *range(self._alternatives)]
            completion.logprobs[row.slot, place] = [-1.0 - first - place, *range(self._alternatives)]
