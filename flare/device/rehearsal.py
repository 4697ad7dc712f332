"""Rehearsal: what a round of each shape costs, before any request is served.

Made-up requests stand in every lane at one committed length, each with as many copied drafts as the round holds. The
request table is put back before every replay, so that all replays of a shape do the same work, and cleared at the end.
"""

from collections.abc import Mapping
from dataclasses import fields
from statistics import median

import torch
from torch import Tensor

from flare.contract.frames import Arguments, HostArray, Source
from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph, Manifest
from flare.contract.policies import SamplingPolicy
from flare.device.replay import ReplayDevice
from flare.ops.sampling import PolicyTable
from flare.rounds.requests import RequestTable

REHEARSED_TOKENS = 512  # committed in every lane, or half of what a shorter context holds
WARM_REPLAYS = 3
TIMED_REPLAYS = 20
PENDING = 1  # the token every lane holds and every copy repeats
ALIVE = 1  # the generation of the made-up requests
ROUNDS = ("decode", "speculative")
LAW = SamplingPolicy(temperature=1.0, top_k=20, top_p=0.95)


def rehearse(
    device: ReplayDevice, requests: RequestTable, law: SamplingPolicy = LAW
) -> Mapping[tuple[int, int], float]:
    """Median seconds of a speculative round per (batch capacity, width); of an ordinary one where none drafts."""
    rounds = [graph for graph in device.manifest.graphs if graph.kind in ROUNDS]
    # Where a shape exists in both modes the speculative one is listed later, and is what adaptive policies choose from.
    return {
        (graph.batch_capacity, graph.token_capacity): median(replay_seconds(device, requests, graph, law))
        for graph in rounds
    }


def replay_seconds(
    device: ReplayDevice,
    requests: RequestTable,
    graph: ExecutionGraph,
    law: SamplingPolicy = LAW,
    replays: int = TIMED_REPLAYS,
) -> list[float]:
    """Seconds of warm replays of one round, all its lanes live; the table is clear afterwards."""
    context = device.manifest.extent.context
    length = min(REHEARSED_TOKENS, max(context // 2, 1))
    moved = admit_everywhere(requests, length, law)
    kept = [tensor.clone() for tensor in moved]
    write_round(device.arguments(0), device.manifest, graph, length)
    try:
        taken = [device.timed(graph.id, moved, kept) for _ in range(WARM_REPLAYS + replays)]
    finally:
        clear(requests, device.arguments(0), device.manifest)
    return taken[WARM_REPLAYS:]


def admit_everywhere(requests: RequestTable, length: int, law: SamplingPolicy) -> list[Tensor]:
    """A request in every slot with `length` committed tokens; the columns that its rounds will move."""
    policy = requests.policy
    values: list[tuple[Tensor, float]] = [
        (requests.request_id, 0),
        (requests.generation, ALIVE),
        (requests.consumed, length),
        (requests.generated, 1),
        (requests.terminal, 0),
        (requests.pending, PENDING),
        (requests.seed, 11),
        (requests.max_tokens, 1 << 40),
        (requests.logprobs, -1),
        (requests.events, 0),
        (requests.recent, PENDING),
        (requests.feedback, 0),
        (policy.temperature, law.temperature),
        (policy.top_k, law.top_k),
        (policy.top_p, law.top_p),
        (policy.min_p, law.min_p),
        (policy.repetition, law.repetition),
        (policy.presence, law.presence),
        (policy.frequency, law.frequency),
        (policy.min_tokens, 0),
        (policy.stops, -1),
        (policy.plain, float(law.plain)),
    ]
    with torch.inference_mode():
        for column, value in values:
            column.fill_(value)
    return [requests.consumed, requests.generated, requests.terminal, requests.pending, requests.recent]


def write_round(arguments: Arguments[HostArray], manifest: Manifest, graph: ExecutionGraph, length: int) -> None:
    """Name as many requests as the graph has lanes, with private pages while there are any, and copied drafts."""
    extent, drafts = manifest.extent, graph.token_capacity - 1
    arguments.lanes[:], arguments.generations[:] = extent.null_slot, -1
    arguments.page_tables[:], arguments.masked[:] = extent.null_page, 0
    needed = -(-(length + graph.token_capacity + 1) // PAGE_TOKENS)
    for lane in range(min(graph.batch_capacity, extent.slots)):
        arguments.lanes[lane], arguments.generations[lane] = lane, ALIVE
        for entry in range(min(needed, extent.pages_per_request)):
            arguments.page_tables[lane, entry] = (lane * needed + entry) % extent.pages
        arguments.copy_position[lane], arguments.copy_before[lane] = length + 1, PENDING
        arguments.copy_length[lane], arguments.copy_source[lane] = drafts, Source.CONTEXT
        arguments.copy_tokens[lane, :], arguments.ceilings[lane] = PENDING, drafts
        arguments.boundary_slots[lane] = -1


def clear(requests: RequestTable, arguments: Arguments[HostArray], manifest: Manifest) -> None:
    """No request anywhere, as in a fresh table, and a frame that names none."""
    policy = requests.policy
    columns = [value for value in vars(requests).values() if isinstance(value, Tensor)]
    columns += [getattr(policy, field.name) for field in fields(PolicyTable)]
    with torch.inference_mode():
        for column in columns:
            column.zero_()
    arguments.lanes[:], arguments.generations[:] = manifest.extent.null_slot, -1
    arguments.page_tables[:] = manifest.extent.null_page
    arguments.copy_length[:], arguments.ceilings[:] = 0, 0
