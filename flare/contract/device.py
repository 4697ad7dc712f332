"""The Device protocol: all that the runtime may do with prepared graphs."""

from typing import Protocol

from flare.contract.frames import Arguments, Completion, HostArray
from flare.contract.manifest import Manifest

FRAMES = 2


class Device(Protocol):
    """Prepared graphs replayed in order over two paired frames.

    The cycle of a frame is `arguments` (write) → `submit` → `poll`… → `collect` (read) → `release`; what a frame
    names (slots, pages, snapshots) may not be freed or given away before its release. Two frames may be submitted at
    once; they execute in the order of submission.
    """

    @property
    def manifest(self) -> Manifest:
        """The graphs `submit` may name."""
        ...

    def attach(self) -> None:
        """Take the frames for one engine.

        Raises:
            RequestError: another engine has them, or the device is closed.
        """
        ...

    def detach(self) -> None:
        """Give the frames back; none may be in flight. Idempotent."""
        ...

    def arguments(self, frame: int) -> Arguments[HostArray]:
        """NumPy views of a frame's pinned inputs; only for a frame that is released."""
        ...

    def submit(self, graph: int, frame: int) -> None:
        """Queue one graph over a frame's arguments. Never blocks."""
        ...

    def poll(self, frame: int) -> bool:
        """Whether the frame's completion can be collected without waiting."""
        ...

    def collect(self, frame: int) -> Completion[HostArray]:
        """Wait for the frame's completion; NumPy views, valid until `release`."""
        ...

    def release(self, frame: int) -> None:
        """Give the frame back for writing."""
        ...
