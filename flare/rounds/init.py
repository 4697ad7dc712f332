"""Admission: writes one request's policy and counters into its slot and counts its tokens once."""

import torch
from torch import Tensor

from flare.contract.frames import Real, Scalar, Terminal
from flare.contract.manifest import ExecutionGraph
from flare.rounds.model import Frame, Model
from flare.rounds.records import write_identity
from flare.rounds.requests import RECENT_TOKENS, RequestTable
from flare.sampling.domains import Domain


def init(model: Model, graph: ExecutionGraph, frame: Frame) -> None:
    """Reset the slot of lane 0: a new request, or a parked one with its pending token and spent events."""
    requests, arguments = model.requests, frame.arguments
    slot = arguments.lanes[:1]
    _write_policy(requests, slot, frame)
    _count_tokens(requests, slot, arguments.tokens, arguments.scalars)
    write_identity(requests, graph, frame, slot)


def _write_policy(requests: RequestTable, slot: Tensor, frame: Frame) -> None:
    arguments, policy = frame.arguments, requests.policy
    scalars, reals = arguments.scalars, arguments.reals
    for column, place in (
        (requests.request_id, Scalar.REQUEST_ID),
        (requests.seed, Scalar.SEED),
        (requests.max_tokens, Scalar.MAX_TOKENS),
        (requests.logprobs, Scalar.LOGPROBS),
        (requests.generated, Scalar.GENERATED),
        (policy.top_k, Scalar.TOP_K),
        (policy.min_tokens, Scalar.MIN_TOKENS),
    ):
        column[slot] = scalars[place]
    for column, place in (
        (policy.temperature, Real.TEMPERATURE),
        (policy.top_p, Real.TOP_P),
        (policy.min_p, Real.MIN_P),
        (policy.repetition, Real.REPETITION),
        (policy.presence, Real.PRESENCE),
        (policy.frequency, Real.FREQUENCY),
    ):
        column[slot] = reals[place]
    policy.plain[slot] = scalars[Scalar.PLAIN] != 0
    policy.stops[slot] = arguments.stop_ids[None]
    requests.generation[slot] = arguments.generations[:1]
    # An assigned number would first travel to the device; a filled one is an argument of its kernel.
    for column, value in (
        (requests.consumed, 0),
        (requests.terminal, int(Terminal.LIVE)),
        (requests.feedback, 0),
        (requests.output, 0),
    ):
        column.index_fill_(0, slot, value)
    spent = (Scalar.ORDINARY_EVENTS, Scalar.PROPOSAL_EVENTS, Scalar.VERIFY_EVENTS)
    for domain, place in zip((Domain.ORDINARY, Domain.PROPOSAL, Domain.VERIFY), spent, strict=True):
        requests.events[slot, int(domain)] = scalars[place]
    _write_bias(policy.bias, slot, frame)


def _write_bias(bias: Tensor, slot: Tensor, frame: Frame) -> None:
    """The row of zeros with the request's entries; unused entries add zero to id 0."""
    arguments = frame.arguments
    index = torch.arange(arguments.bias_ids.shape[0], device=bias.device)
    used = index < arguments.scalars[Scalar.BIAS_COUNT]
    row = bias.new_zeros(1, bias.shape[1])
    row.scatter_add_(1, arguments.bias_ids.where(used, 0)[None], arguments.bias_values.where(used, 0)[None])
    bias[slot] = row


def _count_tokens(requests: RequestTable, slot: Tensor, tokens: Tensor, scalars: Tensor) -> None:
    """Prompt tokens go to the prompt counts, the rest to the generated ones; the last is pending if any was sampled."""
    policy, index = requests.policy, torch.arange(tokens.shape[0], device=tokens.device)
    total, prompt = scalars[Scalar.TOKEN_COUNT], scalars[Scalar.PROMPT_TOKENS]
    for counts, counted in (
        (policy.prompt_counts, index < prompt),
        (policy.generated_counts, (index >= prompt) & (index < total)),
    ):
        row = counts.new_zeros(1, counts.shape[1])
        row.scatter_add_(1, tokens.where(counted, 0)[None], counted.int()[None])
        counts[slot] = row
    last = tokens.gather(0, (total - 1).clamp_min(0)[None])
    requests.pending[slot] = last.where(scalars[Scalar.GENERATED] > 0, 0)
    places = torch.arange(RECENT_TOKENS, device=tokens.device)
    newest = total - 1 - (total - 1 - places) % RECENT_TOKENS  # the latest position that falls on each place
    requests.recent[slot] = tokens.gather(0, newest.clamp_min(0)).where(newest >= 0, -1)[None]
