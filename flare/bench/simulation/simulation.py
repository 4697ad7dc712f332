"""One simulation: arrivals, trouble and steps of a real engine, each step held against the truth."""

from collections import Counter
from contextlib import suppress
from random import Random
from time import process_time

from flare.bench.simulation.checks.case import Case
from flare.bench.simulation.checks.invariants import Invariants
from flare.bench.simulation.checks.tenants import Tenants
from flare.bench.simulation.core import simulated_core
from flare.bench.simulation.report import SeedResult
from flare.bench.simulation.scenario import Scenario
from flare.bench.simulation.scripted import ReplayFailed
from flare.bench.simulation.scripted.faults import Failure, require
from flare.bench.simulation.workload import Wish, Workload
from flare.runtime.engine import Engine
from flare.runtime.requests import Request, State

ARRIVAL, BURST, CANCEL, LATE, FAIL = 0.3, 0.01, 0.02, 0.05, 0.008
LATE_S = 0.02
PATIENCE = 4  # times the launches that everything ahead of a request could need


class Simulation:
    """A scenario running; `step` until enough rounds are done, then `drain`.

    Attributes:
        counts: what happened, beside the device's own `counts`.
    """

    def __init__(self, scenario: Scenario) -> None:
        core = simulated_core(scenario.sizes, scenario.truth, scenario.overrides)
        self.scenario = scenario
        self.device = core.device
        self.engine = Engine(core, core.device.clock)
        self.counts: Counter[str] = Counter()
        self.cases: dict[int, Case] = {}
        self._draw = Random(f"trouble {scenario.seed}")
        self._workload = Workload(scenario)
        self._tenants = Tenants()
        self._invariants = Invariants(self.engine, core.device)

    def run(self, rounds: int) -> None:
        """Arrive, trouble and step until so many rounds were executed; then drain."""
        while self.device.rounds < rounds:
            self.arrive()
            if self.scenario.faults:
                self.trouble()
            self.step()
        self.drain()
        self.counts["preemptions"] = self.engine.scheduler.preemptions

    def drain(self) -> None:
        """Let everything finish; nothing may be left."""
        while not self.engine.idle:
            self.step()
        self._invariants.check_drained()
        require(not self.cases, "a request never finished")
        self.engine.close()

    def step(self) -> None:
        """One step of the engine, then every check."""
        with suppress(ReplayFailed):  # what a server does: the requests it struck have their error, the others go on
            self.engine.step()
        self.check()

    def check(self) -> None:
        """Follow every case and recount the memory."""
        launches, lost = self.device.launches, self.device.lost
        for case in list(self.cases.values()):
            if case.handle.finished:
                self._close(case, case.handle.id in lost)
            else:
                case.follow()
                case.check_progress(launches)
        self._invariants.check()

    def arrive(self) -> None:
        """Perhaps a request, perhaps a burst of them; at least one where nothing is left to do."""
        room = self.scenario.queue - len(self.cases)
        if not self.cases or (self._draw.random() < ARRIVAL and room > 0):
            self.submit(self._workload.wish())
        if self.scenario.faults and self._draw.random() < BURST:
            self.counts["bursts"] += 1
            for _ in range(self.scenario.queue - len(self.cases)):
                self.submit(self._workload.wish())

    def submit(self, wish: Wish) -> list[Case]:
        """Queue one wish and follow its completions."""
        left = sum(self._left(case) for case in self.cases.values())
        handles = self.engine.submit(list(wish.prompt), wish.sampling)
        due = self.device.launches + PATIENCE * (self._work(wish) * len(handles) + left)
        self.counts["requests"] += len(handles)
        cases = [Case(handle, wish, self.scenario.truth, due) for handle in handles]
        self.cases.update((case.handle.id, case) for case in cases)
        for case in cases:
            self._tenants.begin(case)
        return cases

    def trouble(self) -> None:
        """Perhaps a cancellation, a late completion or a failure of the next round; senders leave as they please."""
        draw = self._draw.random
        if self.cases and draw() < CANCEL:
            self.cancel(self._victim())
        for case in list(self.cases.values()):
            if case.leaves:
                self.counts["disconnects"] += 1
                self.cancel(case)
        if draw() < LATE:
            self.counts["late completions"] += 1
            self.device.armed.delay_s = LATE_S
        if draw() < FAIL:
            self.device.armed.failure = self._draw.choice((Failure.REPLAY, Failure.NOT_FINITE))

    def _victim(self) -> Case:
        """A case of a phase drawn first: most requests wait or run, and the others matter as much."""
        phases: dict[str, list[Case]] = {}
        for case in self.cases.values():
            phases.setdefault(phase_of(case.handle), []).append(case)
        return self._draw.choice(phases[self._draw.choice(sorted(phases))])

    def cancel(self, case: Case) -> None:
        """End a request as its sender would, whatever stands in the frames."""
        self.counts[f"cancelled {phase_of(case.handle)}"] += 1
        self.counts[f"cancelled with {self.device.queued_rounds} rounds queued"] += 1
        case.cancelled = True
        self.engine.cancel(case.handle)
        self.check()

    def _close(self, case: Case, lost: bool) -> None:
        restored = self.device.restored.pop(case.handle.id, 0)
        case.finish(lost, restored)
        self._tenants.end(case)
        del self.cases[case.handle.id]
        done = case.handle.completion
        self.counts["failed requests" if done is None else f"finished by {done.finish_reason}"] += 1
        if done is not None:
            self._workload.learn(case.wish.prompt, done.token_ids)

    def _work(self, wish: Wish) -> int:
        """Launches that one request alone may need."""
        budget = wish.sampling.max_tokens or 0
        return 4 + len(wish.prompt) // min(self.scenario.sizes.chunks) + budget

    def _left(self, case: Case) -> int:
        return self._work(case.wish) - case.handle.generated_tokens


def phase_of(request: Request) -> str:
    """Where a cancellation meets a request."""
    if request.state is State.PREFILLING:
        started = request.prefilled_tokens > request.cached_tokens
        return "prefilling" if started else "after init" if request.initialised else "admitted"
    parked = request.state is State.WAITING and request.preemptions > 0
    return "parked" if parked else request.state.name.lower()


def simulate(scenario: Scenario, rounds: int) -> SeedResult:
    """Run one scenario to its end; what went wrong is part of the result."""
    simulation = Simulation(scenario)
    begin_s, error = process_time(), None
    try:
        simulation.run(rounds)
    except Exception as found:  # noqa: BLE001  any error of the runtime is a finding, to be told with its seed
        error = f"{type(found).__name__}: {found}"
    return SeedResult(scenario.seed, simulation.counts + simulation.device.counts, process_time() - begin_s, error)
