"""The CPU device: the same programs over the same static buffers, replayed by one ordered worker thread."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from flare.contract.device import FRAMES
from flare.contract.frames import Arguments, Completion, HostArray, host_arguments, host_completion
from flare.contract.manifest import Manifest
from flare.device.replay import Program
from flare.device.tenancy import Tenancy
from flare.rounds.model import Frame
from flare.rounds.requests import RequestTable


class CpuDevice:
    """Replays one program per manifest graph. `close` drains what was submitted."""

    pool_bytes = 0

    def __init__(self, manifest: Manifest, programs: Sequence[Program], threads: int) -> None:
        """Args: programs: one per graph, in manifest order; threads: torch threads of the worker."""
        assert len(programs) == len(manifest.graphs)
        self.manifest = manifest
        self._programs = programs
        self._tenancy = Tenancy()
        self._frames = [_FramePair(manifest) for _ in range(FRAMES)]
        # OpenMP keeps its thread count per calling thread, so the worker sets its own.
        self._worker = ThreadPoolExecutor(1, "flare-device", torch.set_num_threads, (threads,))

    def attach(self) -> None:
        self._tenancy.take()

    def detach(self) -> None:
        self._tenancy.leave()

    def arguments(self, frame: int) -> Arguments[HostArray]:
        pair = self._frames[frame]
        assert pair.replay is None, f"frame {frame} is not released"
        return pair.arguments

    def submit(self, graph: int, frame: int) -> None:
        pair = self._frames[frame]
        assert pair.replay is None, f"frame {frame} is not released"
        pair.replay = self._worker.submit(_replay, self._programs[graph], pair.tensors)

    def poll(self, frame: int) -> bool:
        return self._submitted(frame).done()

    def collect(self, frame: int) -> Completion[HostArray]:
        """Raises whatever the program raised."""
        self._submitted(frame).result()
        return self._frames[frame].completion

    def release(self, frame: int) -> None:
        assert self._submitted(frame).done(), f"frame {frame} is still in flight"
        self._frames[frame].replay = None

    def measure(self, requests: RequestTable) -> Mapping[tuple[int, int], float]:  # noqa: ARG002  nothing is rehearsed
        """Nothing: a neighbour's load moves a CPU's rounds, so only the rounds that serve are worth learning from."""
        return {}

    def timed(self, graph: int, before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
        for target, kept in zip(before, after, strict=True):
            target.copy_(kept)
        since = perf_counter()
        self._worker.submit(_replay, self._programs[graph], self._frames[0].tensors).result()
        return perf_counter() - since

    def staged(self) -> Frame:
        return self._frames[0].tensors

    def close(self) -> None:
        """Finish what was submitted and end the worker. Idempotent."""
        self._tenancy.end()
        self._worker.shutdown()

    def _submitted(self, frame: int) -> "Future[None]":
        replay = self._frames[frame].replay
        assert replay is not None, f"frame {frame} was not submitted"
        return replay


class _FramePair:
    """Input and completion buffers of one frame, as NumPy for the host and torch for the programs."""

    def __init__(self, manifest: Manifest) -> None:
        self.arguments, self.completion = host_arguments(manifest.extent), host_completion(manifest.extent)
        self.arguments.lanes[:] = manifest.extent.null_slot
        self.arguments.page_tables[:] = manifest.extent.null_page
        self.arguments.boundary_slots[:] = -1
        self.tensors = Frame(Arguments(**_tensors(self.arguments)), Completion(**_tensors(self.completion)))
        self.replay: Future[None] | None = None


def _replay(program: Program, frame: Frame) -> None:
    with torch.inference_mode():
        program(frame)


def _tensors(arrays: Arguments[HostArray] | Completion[HostArray]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in vars(arrays).items()}
