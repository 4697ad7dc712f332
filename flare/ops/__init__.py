"""Operators by device: `load` names the sets there are."""

from importlib.util import find_spec

from flare.errors import PlanError
from flare.ops.operators import Operators

__all__ = ["CUDA_PACKAGES", "Operators", "load"]


CUDA_PACKAGES = ("triton",)
"""What the CUDA operators are written in."""


def load(device: str) -> Operators:
    """The operator set bound to a kind of device.

    Raises:
        PlanError: there is no operator set for this device, or what its operators are written in is not installed.
    """
    match device:
        case "cpu":
            # Imported here so that a CUDA core never touches the CPU kernels, nor the other way round.
            from flare.ops.cpu import CPU

            return CPU
        case "cuda":
            absent = [package for package in CUDA_PACKAGES if find_spec(package) is None]
            if absent:
                raise PlanError(
                    f"preparation.device=cuda needs {' and '.join(absent)}: python -m pip install 'flare[cuda]', "
                    "or set preparation.device=cpu"
                )
            from flare.ops.cuda import CUDA

            return CUDA
    raise PlanError(f"preparation.device={device} has no operators; they are for cpu and cuda")
