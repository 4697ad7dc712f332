"""What the prefix index offers must be what the device holds: snapshot rows and whole pages, looked at once each."""

from flare.bench.simulation.scripted import SimulatedDevice
from flare.bench.simulation.scripted.faults import require
from flare.contract.manifest import PAGE_TOKENS
from flare.runtime.memory.prefix import Prefixes
from flare.runtime.memory.radix import Endpoint, Node


class Published:
    """Compares each newly published prefix with the device's own truth, before anyone begins from it."""

    def __init__(self, prefixes: Prefixes, device: SimulatedDevice) -> None:
        self._prefixes, self._device = prefixes, device
        self._endpoints: set[Endpoint] = set()
        self._chains: dict[Node, list[int]] = {}

    def check(self) -> None:
        """Raise `ContractError` on the first prefix that is not what its tokens say."""
        nodes = list(self._prefixes._nodes())
        chains: dict[Node, list[int]] = {}
        for node in nodes:  # parents come before their children
            chains[node] = self._chains.get(node) or self._whole_page(node, chains)
        self._chains = chains
        endpoints = {endpoint for node in nodes for endpoint in node.endpoints.values()}
        for endpoint in endpoints - self._endpoints:
            self._exact(endpoint)
        self._endpoints = endpoints

    def _whole_page(self, node: Node, chains: dict[Node, list[int]]) -> list[int]:
        """The prefix hashes of a node's own page, the one before it first; the page must hold them."""
        truth = self._device.truth
        if node.parent is None:
            return [truth.empty]
        chain = truth.chain_after(chains[node.parent][-1], node.tokens)
        require(self._device.storage.holds(node.page, chain[1:]), f"page {node.page} is published as another prefix")
        return chain

    def _exact(self, endpoint: Endpoint) -> None:
        """A snapshot row and the page its tail lies in."""
        device, tail = self._device, endpoint.tail
        chain = device.truth.chain_after(self._chains[endpoint.node][-1], tail)
        row = device.manifest.extent.snapshot_row(endpoint.snapshot)
        found = device.storage.snapshots.get(row)
        require(found is not None, f"snapshot row {row} is published and holds nothing")
        require(found == (chain[-1], endpoint.node.depth * PAGE_TOKENS + len(tail)), f"row {row} is another prefix")
        require(not tail or device.storage.holds(endpoint.page, chain[1:]), f"page {endpoint.page} is another tail")
