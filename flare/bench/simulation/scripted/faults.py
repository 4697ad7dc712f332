"""What goes wrong: breaches of the contract by the host, and failures the device is told to have."""

from dataclasses import dataclass
from enum import Enum, auto


class ContractError(AssertionError):
    """The host broke the contract, or state the host vouched for is not what it should be."""


def require(holds: bool, what: str) -> None:
    """Raise `ContractError` unless the contract holds."""
    if not holds:
        raise ContractError(what)


class Failure(Enum):
    """What a replay can be told to do wrong."""

    NONE = auto()
    REPLAY = auto()  # `collect` raises; the state of its lanes is lost
    NOT_FINITE = auto()  # one lane's record carries `Flag.FAULT`; its state is lost
    STALE = auto()  # one lane's record is that of the slot's previous holder


@dataclass
class Armed:
    """The failure of the next submitted round, and how much later than planned it completes."""

    failure: Failure = Failure.NONE
    delay_s: float = 0.0

    def take(self) -> "Armed":
        """What was armed, which is then disarmed."""
        taken = Armed(self.failure, self.delay_s)
        self.failure, self.delay_s = Failure.NONE, 0.0
        return taken
