"""Stopwatches: how long work takes on a device that runs behind the host, and where the time goes.

On CUDA work is captured once and replayed, as it would be served; on a CPU it runs as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch

from flare.plan.plan import DeviceName

Work = Callable[[], object]


class Kernel(NamedTuple):
    """One kind of kernel in one replay: how often it runs, and microseconds of all its runs."""

    name: str
    launches: int
    microseconds: float


class Recorded(NamedTuple):
    """Work that can be repeated: `replay` queues one repetition, `wait` returns when all are done.

    Attributes:
        work: kept, because a graph reads the storage of its operands without owning it.
    """

    replay: Callable[[], None]
    wait: Callable[[], None]
    work: Work


class Stopwatch(Protocol):
    """Times work on one kind of device."""

    device: DeviceName

    def record(self, work: Work) -> Recorded:
        """Work ready for repetition, warmed up."""
        ...

    def replays_us(self, recorded: Recorded, replays: int) -> list[float]:
        """Microseconds of each of so many repetitions, after a few unmeasured ones."""
        ...

    def kernels(self, recorded: Recorded) -> list[Kernel]:
        """What one repetition runs, the most expensive first; empty where nothing can tell."""
        ...

    def marked(self, work: Callable[["Marks"], object], replays: int) -> list[Mapping[str, float]]:
        """Microseconds by stage of each repetition of work that calls its marks."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the device is, for a reader who compares."""
        ...

    def held_bytes(self) -> int:
        """Bytes of live tensors on the device; 0 where nobody counts."""
        ...

    def allocations(self) -> int:
        """How often device memory was asked for so far; 0 where nobody counts."""
        ...


class Marks:
    """Named intervals of one repetition. Inner stages interrupt outer ones: every moment belongs to one stage.

    Attributes:
        stamp: what the time is, in a form that `between_us` understands.
    """

    OTHER = "other"

    def __init__(self, stamp: Callable[[], Any], between_us: Callable[[Any, Any], float]) -> None:
        self._stamp, self._between_us = stamp, between_us
        self._open = [self.OTHER]
        self._intervals: list[tuple[str, Any, Any]] = []
        self._since = stamp()

    def enter(self, stage: str) -> None:
        """From here on the time is `stage`'s."""
        self._cut()
        self._open.append(stage)

    def leave(self) -> None:
        """Back to the stage around."""
        self._cut()
        self._open.pop()

    def end(self) -> None:
        """The work is done."""
        self._cut()

    def read(self) -> Mapping[str, float]:
        """Microseconds by stage of the latest repetition."""
        spent: dict[str, float] = {}
        for stage, since, until in self._intervals:
            spent[stage] = spent.get(stage, 0.0) + self._between_us(since, until)
        return spent

    def _cut(self) -> None:
        now = self._stamp()
        self._intervals.append((self._open[-1], self._since, now))
        self._since = now


class CpuStopwatch:
    """Work runs where it is called."""

    device: DeviceName = "cpu"

    def record(self, work: Work) -> Recorded:
        def run() -> None:
            with torch.inference_mode():
                work()

        run()
        return Recorded(run, lambda: None, work)

    def replays_us(self, recorded: Recorded, replays: int) -> list[float]:
        taken = []
        for _ in range(replays):
            since = perf_counter()
            recorded.replay()
            taken.append(1e6 * (perf_counter() - since))
        return taken

    def kernels(self, recorded: Recorded) -> list[Kernel]:  # noqa: ARG002  the profiler names no kernels here
        return []

    def marked(self, work: Callable[[Marks], object], replays: int) -> list[Mapping[str, float]]:
        found = []
        for _ in range(replays):
            marks = Marks(perf_counter, lambda since, until: 1e6 * (until - since))
            with torch.inference_mode():
                work(marks)
            marks.end()
            found.append(marks.read())
        return found

    def facts(self) -> dict[str, Any]:
        return {"name": "cpu", "threads": torch.get_num_threads()}

    def held_bytes(self) -> int:
        return 0

    def allocations(self) -> int:
        return 0


def stopwatch(device: DeviceName) -> Stopwatch:
    """The stopwatch of a kind of device."""
    match device:
        case "cpu":
            return CpuStopwatch()
        case "cuda":
            from flare.device.cuda_stopwatch import CudaStopwatch

            return CudaStopwatch()


def median_us(watch: Stopwatch, work: Work, *, inner: int = 1, replays: int = 20) -> float:
    """Median microseconds of one run of the work; `inner` runs are recorded together, so that launches weigh less."""

    def several() -> None:
        for _ in range(inner):
            work()

    return median(watch.replays_us(watch.record(several), replays)) / inner


def median_stages(taken: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median microseconds of every stage."""
    names = dict.fromkeys(name for spent in taken for name in spent)
    return {name: median(spent.get(name, 0.0) for spent in taken) for name in names}
