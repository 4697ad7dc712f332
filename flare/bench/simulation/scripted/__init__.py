"""A scripted device: token streams, pages and snapshots as hashes of the prefix they stand for."""

from flare.bench.simulation.scripted.clock import Clock, Costs, linear_costs
from flare.bench.simulation.scripted.device import ReplayFailed, SimulatedDevice
from flare.bench.simulation.scripted.faults import ContractError
from flare.bench.simulation.scripted.manifest import Sizes, simulated_manifest
from flare.bench.simulation.scripted.truth import Truth

__all__ = [
    "Clock",
    "ContractError",
    "Costs",
    "ReplayFailed",
    "SimulatedDevice",
    "Sizes",
    "Truth",
    "linear_costs",
    "simulated_manifest",
]
