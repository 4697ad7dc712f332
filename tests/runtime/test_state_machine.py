"""A hypothesis state machine over the engine: any order of submissions, steps, cancellations and failures is served."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from flare.bench.simulation.scenario import MODES, Scenario
from flare.bench.simulation.scripted import Sizes, Truth
from flare.bench.simulation.scripted.faults import Failure
from flare.bench.simulation.simulation import Simulation
from flare.bench.simulation.workload import Wish
from flare.runtime.sampling import Sampling

LENGTHS = st.sampled_from([1, 2, 3, 40, 63, 64, 65, 100, 127, 128, 129])
PHRASES = st.integers(0, 3)


class EngineMachine(RuleBasedStateMachine):
    """The simulation's checks run after every rule; the rules are what a server does."""

    @initialize(
        mode=st.sampled_from(MODES),
        pages=st.integers(6, 12),
        snapshots=st.integers(0, 4),
        learned=st.booleans(),
        paged=st.booleans(),
    )
    def open(self, mode, pages, snapshots, learned, paged):
        sizes = Sizes(lanes=2, slots=3, pages=pages, snapshots=snapshots, learned=learned, paged=paged and not learned)
        self.simulation = Simulation(Scenario(0, sizes, Truth(7, slips=4000), mode, faults=True))

    @rule(
        phrase=PHRASES,
        length=LENGTHS,
        branch=st.integers(0, 3),
        budget=st.sampled_from([1, 2, 20, 70, 140]),
        stop=st.sampled_from([None, "b", "cd"]),
        stop_id=st.sampled_from([None, 5]),
        salt=st.sampled_from([None, "red"]),
        n=st.sampled_from([1, 1, 2]),
    )
    def submit(self, phrase, length, branch, budget, stop, stop_id, salt, n):
        if len(self.simulation.cases) >= 8:
            return
        prompt = tuple((phrase * 11 + i * (phrase + 1)) % 96 for i in range(length)) + (90,) * branch
        sampling = Sampling(
            temperature=0.0,
            seed=1,
            max_tokens=budget,
            stop=stop,
            stop_token_ids=None if stop_id is None else [stop_id],
            cache_salt=salt,
            n=n,
        )
        self.simulation.submit(Wish(prompt, sampling))

    @rule(count=st.sampled_from([1, 1, 2, 10, 40]))
    def step(self, count):
        for _ in range(count):
            self.simulation.step()

    @precondition(lambda self: self.simulation.cases)
    @rule(index=st.integers(0, 7))
    def cancel(self, index):
        cases = list(self.simulation.cases.values())
        self.simulation.cancel(cases[index % len(cases)])

    @rule(failure=st.sampled_from([Failure.REPLAY, Failure.NOT_FINITE]), delay_s=st.sampled_from([0.0, 0.05]))
    def arm(self, failure, delay_s):
        self.simulation.device.armed.failure = failure
        self.simulation.device.armed.delay_s = delay_s

    def teardown(self):
        if hasattr(self, "simulation"):
            self.simulation.drain()


EngineMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
test_any_order_of_events_is_served = EngineMachine.TestCase
