"""Trial capture: the largest graphs, captured over little storage and thrown away, tell what all of them will hold."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flare.contract.manifest import Manifest
from flare.device.cuda_frames import FixedFrame, PinnedPair
from flare.device.cuda_graphs import capture_programs, largest_of_each, replay_stream, settle_memory
from flare.device.replay import Program


def trial_bytes(manifest: Manifest, programs: Sequence[Program], storage: Iterable[Tensor]) -> int:
    """Bytes of the shared pool and of library workspaces; frees the storage.

    Compiled and tuned kernels stay, so the real warm-up is short.
    """
    stream = replay_stream()
    fixed, pair = FixedFrame(manifest.extent, torch.device("cuda")), PinnedPair(manifest.extent)
    fixed.arguments.copy_(pair.argument_buffer)
    captured = capture_programs(largest_of_each(manifest), programs, fixed.tensors, stream)
    for graph in captured.by_id.values():
        graph.reset()
    captured.by_id.clear()
    for tensor in storage:
        tensor.untyped_storage().resize_(0)
    settle_memory()
    return captured.memory.workspace_bytes + captured.memory.pool_bytes
