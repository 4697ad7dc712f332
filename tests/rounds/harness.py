"""A tiny float64 core driven by hand: frames are written and programs replayed without any runtime."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flare import ops
from flare.build import declarations
from flare.contract.frames import (
    RECORD_FIELDS,
    Arguments,
    Completion,
    Field,
    Real,
    Scalar,
    Source,
    host_arguments,
    host_completion,
)
from flare.contract.manifest import ExecutionGraph, Extent
from flare.contract.policies import SamplingPolicy
from flare.drafting.contract import Drafter
from flare.drafting.copies import Copies
from flare.layers.attention import AttentionShape
from flare.layers.decoder import DecoderShape, DenseDecoder
from flare.layers.storage import Storage
from flare.layers.target import Target
from flare.ops.operators import Operators
from flare.plan.declarations import Declarations, PagedState, RingState, RoundBuffer, SlotState, State
from flare.rounds.decode import decode
from flare.rounds.init import init
from flare.rounds.model import Frame, Model
from flare.rounds.prefill import prefill, resume, scored_prefill
from flare.rounds.requests import RequestTable
from flare.rounds.snapshot import restore, snapshot
from flare.rounds.speculative import speculative_round
from flare.state.arena import Arena, torch_dtype
from flare.state.prefix import prefix_state

SHAPE = DecoderShape(
    vocab=61, layers=2, attention=AttentionShape(24, 4, 2, 6), ffn=40, rope_base=1000.0, norm_eps=1e-5, context=256
)
SLOTS = 4
PAGES_PER_REQUEST = 4
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=200)


def random_weights(shape: DecoderShape = SHAPE, seed: int = 0) -> dict[str, Tensor]:
    """Float64 weights with logits spread enough that greedy decoding does not settle on one token."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for weight in DenseDecoder(shape, "float64").declare().weights:
        values = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weights[weight.name] = (
            1 + 0.1 * values if weight.name.endswith("norm") else 3 * values / weight.shape[-1] ** 0.5
        )
    return weights


@dataclass
class Bench:
    """One model with its frame; `pages` of slot s are s·4 … s·4 + 3 unless it shares some.

    Attributes:
        declared: by part, as the core declares it.
        tables: page tables of slots that share pages; boundaries: snapshot rows by slot, named in every frame.
    """

    model: Model
    extent: Extent
    arguments: Arguments
    completion: Completion
    frame: Frame
    state: dict[str, Tensor] = field(default_factory=dict)
    declared: dict[str, Declarations] = field(default_factory=dict)
    guard: AbstractContextManager = field(default_factory=nullcontext)  # around every replayed program
    tables: dict[int, Sequence[int]] = field(default_factory=dict)
    boundaries: dict[int, int] = field(default_factory=dict)

    def pages(self, slot: int) -> Sequence[int]:
        return self.tables.get(slot, range(slot * PAGES_PER_REQUEST, (slot + 1) * PAGES_PER_REQUEST))

    def replay(self, program: Callable, graph: ExecutionGraph) -> np.ndarray:
        """Run one program over the frame; all records."""
        with torch.inference_mode(), self.guard:
            program(self.model, graph, self.frame)
        return self.completion.records.copy()

    def name_lanes(self, slots: Sequence[int]) -> None:
        """Reset the frame and name these slots, lane by lane."""
        arguments = self.arguments
        arguments.lanes[:], arguments.generations[:] = self.extent.null_slot, -1
        arguments.page_tables[:] = self.extent.null_page
        arguments.copy_length[:], arguments.ceilings[:], arguments.masked[:] = 0, 0, 0
        arguments.boundary_slots[:] = -1
        for lane, slot in enumerate(slots):
            arguments.lanes[lane], arguments.generations[lane] = slot, 7
            arguments.page_tables[lane] = list(self.pages(slot))
            arguments.boundary_slots[lane] = self.boundaries.get(slot, -1)

    def admit(self, slot: int, prompt: Sequence[int], policy: SamplingPolicy, generated: Sequence[int] = ()) -> None:
        """Write a request into a slot; with `generated` it is a parked one."""
        self.name_lanes([slot])
        arguments, tokens = self.arguments, [*prompt, *generated]
        arguments.tokens[: len(tokens)] = tokens
        arguments.scalars[:] = 0
        for place, value in {
            Scalar.TOKEN_COUNT: len(tokens),
            Scalar.PROMPT_TOKENS: len(prompt),
            Scalar.REQUEST_ID: 100 + slot,
            Scalar.TOP_K: policy.top_k,
            Scalar.MIN_TOKENS: policy.min_tokens,
            Scalar.MAX_TOKENS: policy.max_tokens,
            Scalar.SEED: policy.seed,
            Scalar.PLAIN: policy.plain,
            Scalar.LOGPROBS: policy.logprobs,
            Scalar.GENERATED: len(generated),
            Scalar.BIAS_COUNT: len(policy.logit_bias),
        }.items():
            arguments.scalars[place] = value
        for place, value in {
            Real.TEMPERATURE: policy.temperature,
            Real.TOP_P: policy.top_p,
            Real.MIN_P: policy.min_p,
            Real.REPETITION: policy.repetition,
            Real.PRESENCE: policy.presence,
            Real.FREQUENCY: policy.frequency,
        }.items():
            arguments.reals[place] = value
        arguments.stop_ids[:] = -1
        arguments.stop_ids[: len(policy.stop_ids)] = policy.stop_ids
        for index, (token, bias) in enumerate(policy.logit_bias):
            arguments.bias_ids[index], arguments.bias_values[index] = token, bias
        self.replay(init, ExecutionGraph(0, "init", 1, 0))

    def chunk(self, slot: int, tokens: Sequence[int], capacity: int, *, sample: bool) -> np.ndarray:
        """Consume a chunk; the record of the slot."""
        self.name_lanes([slot])
        self.arguments.tokens[: len(tokens)] = tokens
        self.arguments.tokens[len(tokens) : capacity] = 3  # padding must not matter
        self.arguments.scalars[Scalar.TOKEN_COUNT] = len(tokens)
        program, kind = (prefill, "prefill") if sample else (resume, "resume")
        return self.replay(program, ExecutionGraph(1, kind, 1, capacity))[slot]

    def scored_chunk(self, slot: int, tokens: Sequence[int], following: int | None, capacity: int) -> np.ndarray:
        """Consume a chunk and score it; without a token after it, also sample."""
        self.name_lanes([slot])
        arguments, behind = self.arguments, [] if following is None else [following]
        arguments.tokens[:capacity] = 3
        arguments.tokens[: len(tokens) + len(behind)] = [*tokens, *behind]
        arguments.scalars[Scalar.TOKEN_COUNT], arguments.scalars[Scalar.SAMPLE] = len(tokens), following is None
        return self.replay(scored_prefill, ExecutionGraph(4, "scored_prefill", 1, capacity))[slot]

    def keep(self, slot: int, row: int) -> np.ndarray:
        """Snapshot a slot into a row; the record of the slot."""
        self.name_lanes([slot])
        self.arguments.boundary_slots[0] = row
        return self.replay(snapshot, ExecutionGraph(5, "snapshot", 1, 0))[slot]

    def restore(
        self, slot: int, row: int, consumed: int, *, copy: tuple[int, int] | None = None, sample: bool = False
    ) -> np.ndarray:
        """Bring a prefix back into an admitted slot; the record of the slot.

        Args:
            copy: the page to copy and the one to copy it to.
        """
        self.name_lanes([slot])
        arguments, null = self.arguments, self.extent.null_page
        arguments.boundary_slots[0] = row
        taken, written = copy or (null, null)
        for place, value in {
            Scalar.CONSUMED: consumed,
            Scalar.COPY_FROM: taken,
            Scalar.COPY_TO: written,
            Scalar.SAMPLE: sample,
        }.items():
            arguments.scalars[place] = value
        return self.replay(restore, ExecutionGraph(6, "restore", 1, 0))[slot]

    def start(self, slot: int, prompt: Sequence[int], policy: SamplingPolicy = GREEDY) -> int:
        """Admit and prefill in one chunk; the first token."""
        self.admit(slot, prompt, policy)
        return int(self.chunk(slot, prompt, 64, sample=True)[RECORD_FIELDS])

    def decode(self, slots: Sequence[int], batch: int | None = None) -> np.ndarray:
        """One ordinary round; all records."""
        self.name_lanes(slots)
        return self.replay(decode, ExecutionGraph(2, "decode", batch or len(slots), 1))

    def round(
        self,
        slots: Sequence[int],
        width: int,
        drafts: dict[int, Sequence[int]],
        *,
        batch: int | None = None,
        ceilings: dict[int, int] | None = None,
    ) -> np.ndarray:
        """One speculative round with copied drafts per slot, anchored after the pending token; all records."""
        self.name_lanes(slots)
        requests, arguments = self.model.requests, self.arguments
        for lane, slot in enumerate(slots):
            copied = list(drafts.get(slot, ()))
            arguments.copy_position[lane] = int(requests.consumed[slot]) + 1
            arguments.copy_before[lane] = int(requests.pending[slot])
            arguments.copy_length[lane], arguments.copy_source[lane] = len(copied), Source.HISTORY
            arguments.copy_tokens[lane, : len(copied)] = copied
            arguments.ceilings[lane] = (ceilings or {}).get(slot, width - 1)
        graph = ExecutionGraph(
            3, "speculative", batch or len(slots), width, draft_tokens=width - 1, verify_tokens=width
        )
        return self.replay(speculative_round, graph)

    def committed(self, slot: int) -> dict[str, Tensor]:
        """All state a request's future depends on: its columns of the table, and its paged state up to N."""
        consumed = int(self.model.requests.consumed[slot])
        columns = {
            name: tensor[slot].clone()
            for name, tensor in self.state.items()
            if name.startswith("requests.") and name != "requests.events"
        }
        pages = list(self.pages(slot))
        for name, tensor in self.state.items():
            if name.endswith((".keys", ".values")):
                columns[name] = tensor[pages].flatten(0, 1)[:consumed].clone()
        return columns


def bench(
    weights: dict[str, Tensor] | None = None,
    *,
    width: int = 8,
    dtype: str = "float64",
    operators: Operators | None = None,
) -> Bench:
    """A fresh dense decoder whose drafts are copies."""
    target = DenseDecoder(SHAPE, dtype)
    drafter = Copies(Copies.Config(max_depth=7), target)
    extent = bench_extent(SHAPE.vocab, SHAPE.context, width)
    return bench_of((target, drafter), weights or random_weights(), extent, dtype, operators)


def bench_extent(vocab: int, context: int, width: int = 8) -> Extent:
    """Four slots of four pages each, and three snapshots."""
    return Extent(
        lanes=4,
        slots=SLOTS,
        pages=SLOTS * PAGES_PER_REQUEST,
        pages_per_request=PAGES_PER_REQUEST,
        width=width,
        chunk=64,
        context=context,
        vocab=vocab,
        logprobs=5,
        snapshots=3,
        scored_chunk=64,
    )


def bench_of(
    parts: tuple[Target, Drafter | None],
    weights: dict[str, Tensor],
    extent: Extent,
    dtype: str,
    operators: Operators | None = None,
) -> Bench:
    """A fresh model; NaN everywhere that nothing committed may ever come from.

    Args:
        weights: by declared name; floating ones are cast to what was declared.
        operators: of the CPU, unless a test brings its own.
    """
    target, drafter = parts
    operators = operators or ops.load("cpu")
    by_part = dict(declarations(target, drafter, extent, extent.lanes * extent.width, dtype))
    declared = list(by_part.values())
    arena = Arena(declared, extent, torch.device("cpu"))
    wanted = [weight for part in declared for weight in part.weights]
    storage = Storage(
        weights={item.name: weights[item.name].to(torch_dtype(item.dtype)) for item in wanted if not item.linear},
        linears={
            item.name: operators.pack_linear(weights[item.name].to(torch_dtype(item.dtype)), "dense")
            for item in wanted
            if item.linear
        },
        state=arena.tensors,
    )
    target.bind(storage, operators)
    if drafter is not None:
        drafter.bind(storage, operators, target)
    poison([state for part in declared for state in part.state], arena, extent)
    requests = RequestTable(arena.tensors, extent, operators.requests)
    model = Model(
        target=target,
        drafter=drafter,
        ops=operators,
        requests=requests,
        logits=arena["round.logits"],
        laws=arena["round.laws"],
        proposals=arena.tensors.get("round.proposals"),
        prefix=prefix_state(declared, arena.tensors),
        extent=extent,
    )
    arguments, completion = host_arguments(extent), host_completion(extent)
    frame = Frame(
        Arguments(**{name: torch.from_numpy(array) for name, array in vars(arguments).items()}),
        Completion(**{name: torch.from_numpy(array) for name, array in vars(completion).items()}),
    )
    return Bench(model, extent, arguments, completion, frame, dict(arena.tensors), by_part)


def poison(declared: Sequence[State], arena: Arena, extent: Extent) -> None:
    """NaN in all pages, all round buffers, the null slot of what the model keeps per request, and all snapshots.

    Snapshots of integers hold a number that is no id, position or count.
    """
    for state in declared:
        tensor = arena.tensors.get(state.name)
        if tensor is None:
            continue
        poisonous = float("nan") if tensor.dtype.is_floating_point else -7
        if isinstance(state, RingState | SlotState):
            tensor[extent.null_slot + 1 :] = poisonous
        if not tensor.dtype.is_floating_point:
            continue
        if isinstance(state, PagedState | RoundBuffer):
            tensor.fill_(float("nan"))
        elif not state.name.startswith("requests.") or state.name in ("requests.feedback", "requests.output"):
            tensor[extent.null_slot] = float("nan")


def emitted(record: np.ndarray) -> list[int]:
    """The tokens a record reports."""
    return record[RECORD_FIELDS : RECORD_FIELDS + record[Field.EMITTED]].tolist()
