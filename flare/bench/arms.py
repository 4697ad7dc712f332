"""Arms: ways to serve one prepared core, side by side in one process.

An arm is the core under another `serving` section. Its device is a view of the shared one that lists exactly the graphs
this section would select, and notes the time of every replay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

from flare.bench.passing import PassingDevice
from flare.build import Core, selection
from flare.config.config import Config
from flare.contract.device import Device
from flare.contract.frames import Completion, HostArray
from flare.contract.manifest import Manifest
from flare.contract.vocabulary import Vocabulary
from flare.plan.plan import selected_graphs
from flare.runtime.engine import Engine
from flare.runtime.policy import Adaptive, Policy

PLAIN = "plain"
COPIES = {"none": (False, False), "history": (True, False), "both": (True, True)}
COPY_NAMES = {"none": "no copies", "history": "history", "both": "history and context"}


@dataclass(frozen=True)
class Arm:
    """A name for tables, and the configuration of the core it serves.

    Attributes:
        width: "plain", a fixed width or "adaptive"; copies: "none", "history" or "both".
    """

    name: str
    width: str
    copies: str
    config: Config


class Replay(NamedTuple):
    """One replayed graph and the seconds from its submission to its collection."""

    graph: int
    seconds: float


class ArmDevice(PassingDevice):
    """The shared device as one arm sees it."""

    def __init__(self, device: Device, manifest: Manifest) -> None:
        super().__init__(device, manifest)
        self.replays: list[Replay] = []
        self._submitted: dict[int, tuple[int, float]] = {}

    def submit(self, graph: int, frame: int) -> None:
        self._submitted[frame] = (graph, perf_counter())
        super().submit(graph, frame)

    def collect(self, frame: int) -> Completion[HostArray]:
        completion = super().collect(frame)
        graph, since = self._submitted[frame]
        self.replays.append(Replay(graph, perf_counter() - since))
        return completion


@dataclass(frozen=True)
class ArmCore:
    """What an engine of one arm runs on: the shared core behind another device and configuration."""

    device: Device
    vocabulary: Vocabulary
    config: Config
    measured_costs: Mapping[tuple[int, int], float]


@dataclass
class Bench:
    """A prepared core with its arms; what an adaptive arm has learned stays with it from engine to engine."""

    core: Core
    learned: dict[str, Policy] = field(default_factory=dict)

    def open(self, arm: Arm, remembered: Sequence[Sequence[int]] = ()) -> tuple[Engine, ArmDevice]:
        """A fresh engine whose history ring holds only the remembered responses."""
        device = ArmDevice(self.core.device, arm_manifest(self.core.manifest, arm.config))
        engine = Engine(ArmCore(device, self.core.vocabulary, arm.config, self.core.measured_costs))
        take_over(engine.policy, self.learned.get(arm.name))
        self.learned[arm.name] = engine.policy
        for tokens in remembered:
            engine.remember(tokens)
        return engine, device


def take_over(policy: Policy, earlier: Policy | None) -> None:
    """Give an adaptive policy what an earlier engine of its arm learned: one long-lived engine would know it."""
    if isinstance(policy, Adaptive) and isinstance(earlier, Adaptive):
        policy.survival, policy.costs, policy.exploration = earlier.survival, earlier.costs, earlier.exploration


def arm_manifest(manifest: Manifest, config: Config) -> Manifest:
    """The graphs that serving would select, under the ids they have in the whole catalog."""
    kept = {replace(graph, id=0) for graph in selected_graphs(manifest.graphs, selection(config))}
    return replace(manifest, graphs=tuple(graph for graph in manifest.graphs if replace(graph, id=0) in kept))


def whole(config: Config) -> Config:
    """The configuration that prepares every graph any arm may select."""
    return serving(config, fixed_width=None, mtp_draft_tokens=max(config.widths()) - 1)


def serving(config: Config, **changes: object) -> Config:
    """The configuration with other `serving` keys."""
    return config.model_copy(update={"serving": config.serving.model_copy(update=changes)})


def plain_arm(config: Config) -> Arm:
    """One token a round, by ordinary decoding."""
    plain = serving(config, mtp_draft_tokens=0, fixed_width=None, history_drafts=False, context_drafts=False)
    return Arm(PLAIN, PLAIN, "none", plain)


def own_arm(config: Config) -> Arm:
    """What `serving.*` says."""
    asked = config.serving
    copies = next(
        (name for name, pair in COPIES.items() if pair == (asked.history_drafts, asked.context_drafts)), "context"
    )
    width = str(asked.fixed_width or ("adaptive" if asked.adaptive_verification else config.depth() + 1))
    if asked.mtp_draft_tokens == 0:
        width = "ordinary"
    return Arm("own", width, copies, config)


def table_arms(config: Config) -> Iterator[Arm]:
    """Fixed widths that are prepared, and the adaptive policy, each under every copy setting."""
    asked = config.workload
    most = max(config.widths()) - 1
    for copies in asked.copies:
        history, context = COPIES[copies]
        common = {"mtp_draft_tokens": most, "history_drafts": history, "context_drafts": context}
        for width in asked.widths:
            if width in config.widths():
                arm = serving(config, fixed_width=width, adaptive_verification=False, **common)
                yield Arm(f"width {width}, {COPY_NAMES[copies]}", str(width), copies, arm)
        arm = serving(config, fixed_width=None, adaptive_verification=True, **common)
        yield Arm(f"adaptive, {COPY_NAMES[copies]}", "adaptive", copies, arm)
