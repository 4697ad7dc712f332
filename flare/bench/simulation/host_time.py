"""The host's own time per round: the engine over a device that only does the arithmetic of a round."""

from dataclasses import asdict, dataclass
from statistics import fmean, median, quantiles
from time import perf_counter
from typing import Any

from flare.bench.simulation.core import simulated_core
from flare.bench.simulation.scripted import SimulatedDevice, Sizes, Truth
from flare.contract.frames import Completion, HostArray
from flare.runtime.engine import Engine
from flare.runtime.sampling import Sampling

CONTEXT = 1024
BUDGET = 400
PROMPT = 24
WINDOWS = 5  # parts of a run whose medians are compared: a cost that grows with finished requests would show
SETTINGS = ("serving.mtp_draft_tokens=7", "serving.adaptive_verification=true")


@dataclass(frozen=True)
class HostTime:
    """Microseconds of the host per round, the device's share taken out; nothing in a step waits.

    Attributes:
        windows_us: medians of equal parts of the run, in order; windows_tokens: tokens a round emitted in them, which a
            good part of the time is spent on.
        finished: requests that had ended by then.
    """

    batch: int
    rounds: int
    median_us: float
    p99_us: float
    windows_us: tuple[float, ...]
    windows_tokens: tuple[float, ...]
    finished: int

    def as_document(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    def as_text(self) -> str:
        """Two lines."""
        windows = ", ".join(f"{window:.0f}" for window in self.windows_us)
        tokens = ", ".join(f"{window:.1f}" for window in self.windows_tokens)
        return (
            f"batch {self.batch}: host {self.median_us:.0f} µs per round (median of {self.rounds}), "
            f"p99 {self.p99_us:.0f} µs\n  medians in order: {windows} µs; tokens a round: {tokens}; "
            f"{self.finished} requests finished"
        )


class TimedDevice(SimulatedDevice):
    """Adds up the seconds spent inside the device, so that they can be taken out.

    Attributes:
        inside_s: since the last `take`.
    """

    inside_s = 0.0

    def submit(self, graph: int, frame: int) -> None:
        begin_s = perf_counter()
        super().submit(graph, frame)
        self.inside_s += perf_counter() - begin_s

    def poll(self, frame: int) -> bool:
        begin_s = perf_counter()
        done = super().poll(frame)
        self.inside_s += perf_counter() - begin_s
        return done

    def collect(self, frame: int) -> Completion[HostArray]:
        begin_s = perf_counter()
        completion = super().collect(frame)
        self.inside_s += perf_counter() - begin_s
        return completion

    def take(self) -> float:
        """The seconds since the last call."""
        taken, self.inside_s = self.inside_s, 0.0
        return taken


def host_time(rounds: int, batch: int, seed: int) -> HostTime:
    """Keep `batch` requests running until so many pure rounds were timed; a step that did more is left out."""
    sizes = Sizes(
        lanes=batch, slots=batch, pages=batch * CONTEXT // 64, context=CONTEXT, widths=tuple(range(1, 9)), rows=128
    )
    truth = Truth(seed, endings=0)
    core = simulated_core(sizes, truth, SETTINGS, checked=False, device=TimedDevice)
    device, engine = core.device, Engine(core, core.device.clock)
    assert isinstance(device, TimedDevice)
    seconds: list[float] = []
    tokens: list[int] = []
    finished, handles = 0, []
    while len(seconds) < rounds:
        while len(handles) < batch:
            prompt = [(seed + finished * 7 + len(handles) * 5 + i) % truth.words for i in range(PROMPT)]
            handles += engine.submit(prompt, Sampling(max_tokens=BUDGET, temperature=0.0, seed=0))
        before = (device.launches, device.rounds)
        device.take()
        begin_s = perf_counter()
        engine.step()
        elapsed_s = perf_counter() - begin_s - device.take()
        emitted = sum(len(event.token_ids) for handle in handles for event in handle.take_events())
        ended = [handle for handle in handles if handle.finished]
        if (device.launches, device.rounds) == (before[0] + 1, before[1] + 1) and not ended:
            seconds.append(elapsed_s)
            tokens.append(emitted)
        finished += len(ended)
        handles = [handle for handle in handles if not handle.finished]
    engine.close()
    return _summary(batch, seconds, tokens, finished)


def _summary(batch: int, seconds: list[float], tokens: list[int], finished: int) -> HostTime:
    part = len(seconds) // WINDOWS
    parts = [slice(i * part, (i + 1) * part) for i in range(WINDOWS)]
    return HostTime(
        batch,
        len(seconds),
        median(seconds) * 1e6,
        quantiles(seconds, n=100)[98] * 1e6,
        tuple(median(seconds[each]) * 1e6 for each in parts),
        tuple(fmean(tokens[each]) for each in parts),
        finished,
    )
