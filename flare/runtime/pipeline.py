"""The frames in flight: at most two launches, executed and collected in the order they were submitted."""

from collections import deque
from collections.abc import Callable, Iterator
from time import sleep
from typing import NamedTuple

from flare.contract.device import FRAMES, Device
from flare.contract.frames import Completion, HostArray
from flare.contract.manifest import Extent
from flare.runtime.frames.writing import FrameWriter
from flare.runtime.launches import Launch

DRAIN_POLL_S = 0.0005


class Flight(NamedTuple):
    """A submitted launch. Pages are those its lanes held then: a request may grow meanwhile."""

    launch: Launch
    frame: int
    submitted_s: float
    pages: tuple[tuple[int, ...], ...]


class Collected(NamedTuple):
    """A launch's completion, valid until its release, and the seconds it took (None where they are not its own)."""

    completion: Completion[HostArray]
    seconds: float | None


class Pipeline:
    """Writes, submits and collects frames, and times what ran in them.

    The device executes in order, so a launch that was queued behind another began when that one was complete. What the
    host can see of it is when it collected. If the first completion had been waiting for the host, and the second was
    waited for, part of the second ran before its time began: then its time is not known. Else the time from completion
    to completion (or from submission, where nothing was queued before) is the launch's own; where the host is the
    slower one, it is the time the host took for a round, which is what another round would cost.
    """

    def __init__(self, device: Device, extent: Extent, clock: Callable[[], float]) -> None:
        self._device = device
        self._clock = clock
        self._writers = [FrameWriter(extent) for _ in range(FRAMES)]
        self._flights: deque[Flight] = deque()
        self._free = deque(range(FRAMES))
        self._seen_s = 0.0
        self._seen_late = False

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights)

    @property
    def full(self) -> bool:
        """No frame is free."""
        return not self._free

    @property
    def oldest(self) -> Launch:
        """The launch that is collected next."""
        return self._flights[0].launch

    def submit(self, launch: Launch) -> None:
        """Queue a launch in a free frame."""
        frame = self._free[0]
        self._writers[frame].write(self._device.arguments(frame), launch)
        flight = Flight(launch, frame, self._clock(), tuple(request.pages for request in launch.requests))
        self._device.submit(launch.graph.id, frame)
        launch.depart()
        self._free.popleft()
        self._flights.append(flight)

    def collect(self) -> Collected:
        """Wait for the oldest launch. Raises what its program raised; then too it is to be released."""
        flight = self._flights[0]
        late = self._device.poll(flight.frame)
        behind = self._seen_s > flight.submitted_s
        begin_s = max(self._seen_s, flight.submitted_s)
        unknown = behind and self._seen_late and not late
        try:
            completion = self._device.collect(flight.frame)
        finally:
            self._seen_s, self._seen_late = self._clock(), late
        return Collected(completion, None if unknown else self._seen_s - begin_s)

    def drain(self) -> None:
        """Wait for the oldest launch without looking at what it did."""
        while not self._device.poll(self._flights[0].frame):
            sleep(DRAIN_POLL_S)

    def release(self) -> Launch:
        """Give the oldest launch's frame back; its completion is gone."""
        flight = self._flights.popleft()
        self._device.release(flight.frame)
        self._free.append(flight.frame)
        return flight.launch
