"""What every device of a core is built from and offers beside the contract: programs, closing, measured costs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from flare.contract.device import Device
from flare.rounds.model import Frame
from flare.rounds.requests import RequestTable

Program = Callable[[Frame], None]
"""The round function of one graph, with everything but its frame decided."""

Progress = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done and how much there is."""


class ReplayDevice(Device, Protocol):
    """A device that owns what it replays.

    Attributes:
        pool_bytes: memory that graphs hold beside all tensors.
    """

    pool_bytes: int

    def measure(self, requests: RequestTable) -> Mapping[tuple[int, int], float]:
        """Seconds of one round per (batch capacity, width), measured before any engine has the frames.

        Empty where rounds are cheaper to learn from than to rehearse.
        """
        ...

    def timed(self, graph: int, before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
        """Seconds of one replay of a graph over frame 0's arguments, with nothing in flight.

        Args:
            before, after: storage that the round moves, and what it shall hold before the replay.
        """
        ...

    def staged(self) -> Frame:
        """The arrays programs work on, holding frame 0's arguments: for programs run beside the graphs."""
        ...

    def close(self) -> None:
        """Finish what was submitted and free what the device owns. Idempotent."""
        ...
