"""The first token: sampled from the law after a prompt's last row, whether that row was just computed or restored.

Shapes: B lanes, H output.
"""

from dataclasses import replace

import torch
from torch import Tensor

from flare.contract.frames import Terminal
from flare.ops.requests import Emission, Lanes
from flare.ops.sampling import DraftLaw
from flare.rounds.model import Frame, Model
from flare.sampling.domains import Domain


def sample_first(model: Model, frame: Frame, lanes: Lanes, output: Tensor, sampled: Tensor) -> Emission:
    """Sample one token per lane after its output [B, H] where `sampled` [B]; elsewhere nothing is emitted or spent."""
    requests = model.requests
    nothing = torch.zeros_like(lanes.slots)
    inputs, drafts = nothing[:, None], nothing[:, None][:, :0]
    logits = model.logits_of(output, len(output), 1)
    laws = model.law(logits, inputs, nothing, lanes, frame.arguments)
    tokens, accepted = model.ops.chain_verify(
        laws, DraftLaw(None, drafts.bool()), drafts, lanes.seeds, lanes.offsets[Domain.ORDINARY]
    )
    drawing = replace(lanes, live=lanes.live & sampled)
    emission = requests.clip(tokens, accepted, drawing)
    requests.advance(drawing, Domain.ORDINARY)
    model.report_logprobs(logits, tokens, emission.kept, drawing, frame.completion)
    return emission


def sample_nothing(lanes: Lanes) -> Emission:
    """What a graph without sampling emits."""
    nothing = torch.zeros_like(lanes.slots)
    live = torch.full_like(nothing, int(Terminal.LIVE))
    return Emission(nothing[:, None], nothing[:, None].bool(), nothing, live, nothing)
