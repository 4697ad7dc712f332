"""A device that passes everything on: what arms and recordings add their own to."""

from flare.contract.device import Device
from flare.contract.frames import Arguments, Completion, HostArray
from flare.contract.manifest import Manifest


class PassingDevice:
    """Another device behind a manifest of its own."""

    def __init__(self, device: Device, manifest: Manifest) -> None:
        self.manifest = manifest
        self._device = device

    def attach(self) -> None:
        self._device.attach()

    def detach(self) -> None:
        self._device.detach()

    def arguments(self, frame: int) -> Arguments[HostArray]:
        return self._device.arguments(frame)

    def submit(self, graph: int, frame: int) -> None:
        self._device.submit(graph, frame)

    def poll(self, frame: int) -> bool:
        return self._device.poll(frame)

    def collect(self, frame: int) -> Completion[HostArray]:
        return self._device.collect(frame)

    def release(self, frame: int) -> None:
        self._device.release(frame)
