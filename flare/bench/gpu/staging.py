"""A frame and a request table in which any graph of a core has real work to do, and the state it may move."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from flare.build import Core
from flare.contract.frames import Real, Scalar
from flare.contract.manifest import ExecutionGraph
from flare.contract.policies import SamplingPolicy
from flare.device.rehearsal import LAW, REHEARSED_TOKENS, admit_everywhere, write_round

CHUNKS = ("prefill", "resume", "scored_prefill")
SHORT_BY = 3  # a chunk leaves so many rows of its graph empty
ADMITTED_TOKENS = 8


def stage(core: Core, graph: ExecutionGraph, law: SamplingPolicy = LAW) -> None:
    """Live requests in every slot, and frame 0 naming as many of them as the graph has lanes."""
    requests, extent = core.model.requests, core.manifest.extent
    length = min(REHEARSED_TOKENS, max(extent.context // 2, 1))
    admit_everywhere(requests, length, law)
    arguments = core.device.arguments(0)
    write_round(arguments, core.manifest, graph, length)
    arguments.scalars[:] = 0
    if graph.kind in CHUNKS:
        requests.consumed.zero_()
        requests.generated.zero_()
        arguments.scalars[Scalar.TOKEN_COUNT] = max(graph.token_capacity - SHORT_BY, 1)
        arguments.scalars[Scalar.SAMPLE] = 1
    elif graph.kind == "init":
        _write_admission(core, law)
    elif graph.kind in ("snapshot", "restore"):
        arguments.boundary_slots[0] = extent.snapshot_row(0) if extent.snapshots else -1
        arguments.scalars[Scalar.CONSUMED] = length
        arguments.scalars[Scalar.COPY_FROM] = arguments.scalars[Scalar.COPY_TO] = extent.null_page
    arguments.tokens[:] = 1 + np.arange(len(arguments.tokens)) % (extent.vocab - 1)


def fill_pages(core: Core, seed: int = 4) -> None:
    """Numbers in all pages, as if every request had a past: what nobody wrote need not even be a number."""
    pages = core.manifest.extent.pages + 1
    for tensor in core.storage.state.values():
        if tensor.shape[0] == pages and tensor.is_floating_point():
            block = torch.randn(tensor[0].shape, generator=torch.Generator().manual_seed(seed))
            tensor.copy_((block / 4).to(tensor.device, tensor.dtype))


def movable(core: Core) -> dict[str, Tensor]:
    """State a round may move and must find again to repeat itself: everything but pages, which it writes before use."""
    pages = core.manifest.extent.pages + 1
    return {name: tensor for name, tensor in core.storage.state.items() if tensor.shape[0] != pages}


def saved(core: Core) -> dict[str, Tensor]:
    """Copies of it."""
    return {name: tensor.clone() for name, tensor in movable(core).items()}


def put_back(core: Core, kept: Mapping[str, Tensor]) -> None:
    """The state as it was saved."""
    for name, tensor in movable(core).items():
        tensor.copy_(kept[name])


def _write_admission(core: Core, law: SamplingPolicy) -> None:
    arguments = core.device.arguments(0)
    for place, value in {
        Scalar.TOKEN_COUNT: ADMITTED_TOKENS,
        Scalar.PROMPT_TOKENS: ADMITTED_TOKENS,
        Scalar.REQUEST_ID: 5,
        Scalar.TOP_K: law.top_k,
        Scalar.MAX_TOKENS: 16,
        Scalar.SEED: 3,
        Scalar.PLAIN: int(law.plain),
        Scalar.LOGPROBS: -1,
    }.items():
        arguments.scalars[place] = value
    reals = {Real.TEMPERATURE: law.temperature, Real.TOP_P: law.top_p, Real.MIN_P: law.min_p}
    for place, real in (reals | {Real.REPETITION: 1.0, Real.PRESENCE: 0.0, Real.FREQUENCY: 0.0}).items():
        arguments.reals[place] = real
    arguments.stop_ids[:] = -1
