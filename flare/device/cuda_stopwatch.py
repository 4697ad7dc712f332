"""The CUDA stopwatch: work in a graph of its own, timed by events around or inside each replay."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from flare.device.cuda import device_facts
from flare.device.cuda_graphs import capture, held_bytes, replay_stream, run_on, settle_memory, undisturbed
from flare.device.stopwatch import Kernel, Marks, Recorded, Work
from flare.plan.plan import DeviceName

WARM_RUNS = 3
WARM_REPLAYS = 5


class CudaStopwatch:
    """Captures and replays on the stream that devices use."""

    device: DeviceName = "cuda"

    def __init__(self) -> None:
        self._stream = replay_stream()

    def record(self, work: Work) -> Recorded:
        torch.cuda.synchronize()
        self._warm(work)
        with undisturbed():
            graph = capture(work, self._stream)

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return Recorded(replay, torch.cuda.synchronize, work)

    def replays_us(self, recorded: Recorded, replays: int) -> list[float]:
        for _ in range(WARM_REPLAYS):
            recorded.replay()
        pairs = [(_timing_event(), _timing_event()) for _ in range(replays)]
        for start, end in pairs:
            start.record(self._stream)
            recorded.replay()
            end.record(self._stream)
        recorded.wait()
        return [1e3 * start.elapsed_time(end) for start, end in pairs]

    def kernels(self, recorded: Recorded) -> list[Kernel]:
        recorded.wait()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            recorded.replay()
            recorded.wait()
        found = [
            Kernel(entry.key, entry.count, float(entry.self_device_time_total)) for entry in profiler.key_averages()
        ]
        return sorted((kernel for kernel in found if kernel.microseconds), key=lambda kernel: -kernel.microseconds)

    def marked(self, work: Callable[[Marks], object], replays: int) -> list[Mapping[str, float]]:
        self._warm(lambda: work(Marks(lambda: None, lambda *_: 0.0)))
        found: list[Marks] = []

        def watched() -> None:
            found.append(Marks(self._stamp, lambda since, until: 1e3 * since.elapsed_time(until)))
            work(found[-1])
            found[-1].end()

        with undisturbed():
            graph = capture(watched, self._stream)
        taken = []
        for _ in range(WARM_REPLAYS + replays):
            with torch.cuda.stream(self._stream):
                graph.replay()
            self._stream.synchronize()
            taken.append(found[-1].read())
        return taken[WARM_REPLAYS:]

    def facts(self) -> dict[str, Any]:
        return device_facts()

    def held_bytes(self) -> int:
        settle_memory()
        return held_bytes()

    def allocations(self) -> int:
        return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))

    def _stamp(self) -> Any:
        """An event whose recording is a node of the graph, so that every replay takes the time anew."""
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record(self._stream)
        return event

    def _warm(self, work: Work) -> None:
        for _ in range(WARM_RUNS):
            run_on(self._stream, work)
        settle_memory()


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)
