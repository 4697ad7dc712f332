"""Operators by device: `load` names the sets there are."""

from flare.errors import PlanError
from flare.ops.operators import Operators

__all__ = ["Operators", "load"]


def load(device: str) -> Operators:
    """The operator set bound to a kind of device.

    Raises:
        PlanError: there is no operator set for this device.
    """
    match device:
        case "cpu":
            # Imported here so that a CUDA core never touches the CPU kernels, nor the other way round.
            from flare.ops.cpu import CPU

            return CPU
    raise PlanError(f"preparation.device={device} has no operators; this build has them for cpu")
