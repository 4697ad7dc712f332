"""Frames on CUDA: two pinned pairs for the host, one set of arrays at fixed addresses for the graphs.

Graphs bake addresses in, so they all read one argument buffer and write one completion buffer. Both are filled and
emptied by the stream they run on or by events it waits for, so two rounds in flight never meet in them, and no graph
has to be captured once per frame.
"""

import torch
from torch import Tensor

from flare.contract.frames import Arguments, Completion, Region, argument_arrays, completion_arrays, layout, views
from flare.contract.manifest import Extent, Kind
from flare.rounds.model import Frame

ROUND_KINDS: tuple[Kind, ...] = ("decode", "speculative")


class FixedFrame:
    """The device's own arrays; all graphs use them.

    Attributes:
        arguments, completion: [bytes] uint8, the buffers themselves; tensors: the arrays cut from them.
    """

    def __init__(self, extent: Extent, device: torch.device) -> None:
        regions, argument_bytes = layout(argument_arrays(extent))
        outputs, completion_bytes = layout(completion_arrays(extent))
        self.arguments = torch.zeros(argument_bytes, dtype=torch.uint8, device=device)
        self.completion = torch.zeros(completion_bytes, dtype=torch.uint8, device=device)
        self.tensors = Frame(
            Arguments(**_cut(self.arguments, regions)),
            Completion(**_cut(self.completion, outputs)),
        )


class PinnedPair:
    """The host's side of one frame.

    Attributes:
        arguments, completion: NumPy views of the pinned buffers.
        argument_buffer, completion_buffer: [bytes] uint8 pinned tensors; ready: recorded once the completion is here.
        submitted: a graph was queued over this frame and it is not released.
    """

    def __init__(self, extent: Extent) -> None:
        self.regions, argument_bytes = layout(argument_arrays(extent))
        outputs, completion_bytes = layout(completion_arrays(extent))
        self.argument_buffer = _pinned(argument_bytes)
        self.completion_buffer = _pinned(completion_bytes)
        self.arguments = Arguments(**views(self.argument_buffer.numpy(), self.regions))
        self.completion = Completion(**views(self.completion_buffer.numpy(), outputs))
        self.arguments.lanes[:], self.arguments.page_tables[:] = extent.null_slot, extent.null_page
        self.arguments.generations[:], self.arguments.boundary_slots[:] = -1, -1
        self.ready = torch.cuda.Event()
        self.submitted = False
        self._without_masks = self.regions["masks"].offset_bytes
        self._with_masks = self.regions["scalars"].offset_bytes
        self._without_prompt = outputs["prompt_logprobs"].offset_bytes

    def read_bytes(self, kind: Kind) -> int:
        """How much of the buffer's head a graph reads: rounds stop before the masks where no lane is masked."""
        if kind not in ROUND_KINDS:
            return self.argument_buffer.numel()
        return self._with_masks if self.arguments.masked.any() else self._without_masks

    def written_bytes(self, kind: Kind) -> int:
        """How much of the completion's head a graph writes: log-probabilities of a prompt only where it is scored."""
        return self.completion_buffer.numel() if kind == "scored_prefill" else self._without_prompt


def _pinned(size_bytes: int) -> Tensor:
    return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)


def _cut(buffer: Tensor, regions: dict[str, Region]) -> dict[str, Tensor]:
    return {
        name: buffer[region.offset_bytes : region.offset_bytes + region.size_bytes]
        .view(getattr(torch, region.dtype))
        .view(region.shape)
        for name, region in regions.items()
    }
