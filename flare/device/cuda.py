"""The CUDA device: one captured graph per shape, replayed in order over two pinned frames.

One submission is a transfer of the frame's arguments, a replay and a transfer of its completion:

    replay stream     arguments → device     (wait: last completion carried off)     graph
    transfer stream                                                                        completion → pinned

Arguments go to one buffer that all graphs read, so a graph is captured once and not once per frame. The transfer
stands before the graph and not inside it: only there can it stop where the graph's kind stops reading. The replay
stream orders it after the round that still reads the buffer, and the pinned side is not rewritten before its release.
The completion buffer is one as well; the next round waits until it was carried off, which overlaps with its own
transfer. `collect` spins: a blocking wait would wake the host tens of microseconds late.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flare.contract.device import FRAMES
from flare.contract.frames import Arguments, Completion, HostArray
from flare.contract.manifest import Kind, Manifest
from flare.device.cuda_frames import FixedFrame, PinnedPair
from flare.device.cuda_graphs import capture_order, capture_programs, replay_stream, settle_memory
from flare.device.rehearsal import rehearse
from flare.device.replay import Program, Progress
from flare.device.tenancy import Tenancy
from flare.rounds.model import Frame
from flare.rounds.requests import RequestTable


class CudaDevice:
    """Replays one captured graph per manifest graph. `close` drains both streams and frees graphs and storage.

    Attributes:
        pool_bytes: what the graphs' shared pool holds.
    """

    def __init__(
        self,
        manifest: Manifest,
        programs: Sequence[Program],
        owned: Iterable[Tensor] = (),
        progress: Progress | None = None,
    ) -> None:
        """Warm up and capture.

        Args:
            programs: one per graph, in manifest order, over storage that never moves.
            owned: tensors whose storage `close` frees, whoever still holds them.
        """
        assert len(programs) == len(manifest.graphs)
        self.manifest = manifest
        self._kinds: list[Kind] = [graph.kind for graph in manifest.graphs]
        self._owned = tuple(owned)
        self._tenancy = Tenancy()
        self._replays, self._transfers = replay_stream(), torch.cuda.Stream()
        self._executed = torch.cuda.Event()
        self._fixed = FixedFrame(manifest.extent, torch.device("cuda"))
        self._frames = [PinnedPair(manifest.extent) for _ in range(FRAMES)]
        self._last_ready = self._frames[0].ready
        self._send(self._frames[0], self._frames[0].argument_buffer.numel())
        captured = capture_programs(capture_order(manifest), programs, self._fixed.tensors, self._replays, progress)
        self._graphs, self.pool_bytes = captured.by_id, captured.memory.pool_bytes

    def attach(self) -> None:
        self._tenancy.take()

    def detach(self) -> None:
        self._tenancy.leave()

    def arguments(self, frame: int) -> Arguments[HostArray]:
        pair = self._frames[frame]
        assert not pair.submitted, f"frame {frame} is not released"
        return pair.arguments

    def submit(self, graph: int, frame: int) -> None:
        pair = self._frames[frame]
        assert not pair.submitted, f"frame {frame} is not released"
        pair.submitted = True
        self._send(pair, pair.read_bytes(self._kinds[graph]))
        with torch.cuda.stream(self._replays):
            self._replays.wait_event(self._last_ready)
            self._graphs[graph].replay()
            self._executed.record(self._replays)
        with torch.cuda.stream(self._transfers):
            self._transfers.wait_event(self._executed)
            written = pair.written_bytes(self._kinds[graph])
            pair.completion_buffer[:written].copy_(self._fixed.completion[:written], non_blocking=True)
            pair.ready.record(self._transfers)
        self._last_ready = pair.ready

    def poll(self, frame: int) -> bool:
        return self._submitted(frame).ready.query()

    def collect(self, frame: int) -> Completion[HostArray]:
        """Raises what a kernel of the replay raised."""
        pair = self._submitted(frame)
        pair.ready.synchronize()
        return pair.completion

    def release(self, frame: int) -> None:
        pair = self._submitted(frame)
        assert pair.ready.query(), f"frame {frame} is still in flight"
        pair.submitted = False

    def measure(self, requests: RequestTable) -> Mapping[tuple[int, int], float]:
        """See `ReplayDevice`: medians of warm replays, each timed by events around its graph."""
        costs = rehearse(self, requests)
        torch.cuda.synchronize()
        return costs

    def timed(self, graph: int, before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair = self._frames[0]
        self._replays.wait_stream(torch.cuda.current_stream())  # whoever prepared the storage did so there
        self._send(pair, pair.read_bytes(self._kinds[graph]))
        with torch.inference_mode(), torch.cuda.stream(self._replays):
            for target, kept in zip(before, after, strict=True):
                target.copy_(kept)
            start.record(self._replays)
            self._graphs[graph].replay()
            end.record(self._replays)
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def staged(self) -> Frame:
        """Its completion stays on the device."""
        self._send(self._frames[0], self._frames[0].argument_buffer.numel())
        torch.cuda.synchronize()
        return self._fixed.tensors

    def close(self) -> None:
        """Drain both streams, then free graphs, pool, frames and owned storage. Idempotent."""
        if not self._tenancy.end():
            return
        self._replays.synchronize()
        self._transfers.synchronize()
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        for tensor in (*self._owned, self._fixed.arguments, self._fixed.completion):
            tensor.untyped_storage().resize_(0)
        self._owned = ()
        settle_memory()

    def _send(self, pair: PinnedPair, size_bytes: int) -> None:
        with torch.cuda.stream(self._replays):
            self._fixed.arguments[:size_bytes].copy_(pair.argument_buffer[:size_bytes], non_blocking=True)

    def _submitted(self, frame: int) -> PinnedPair:
        pair = self._frames[frame]
        assert pair.submitted, f"frame {frame} was not submitted"
        return pair


def device_facts() -> dict[str, Any]:
    """What a reader needs to compare a measurement: name, memory, capability, versions."""
    free, total = torch.cuda.mem_get_info()
    facts = torch.cuda.get_device_properties(0)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_bytes": total,
        "free_bytes": free,
        "cuda": torch.version.cuda,
    }
