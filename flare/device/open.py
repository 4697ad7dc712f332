"""From a plan to the device it names, and to what that device's graphs will need."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from flare.device.cpu import CpuDevice
from flare.device.replay import Program, Progress, ReplayDevice
from flare.plan.plan import Plan


def open_device(
    plan: Plan, programs: Sequence[Program], owned: Iterable[Tensor] = (), progress: Progress | None = None
) -> ReplayDevice:
    """The device that replays these programs, one per graph of the plan.

    Args:
        owned: storage that goes with the device's end, where the device has memory of its own.
    """
    match plan.device:
        case "cpu":
            return CpuDevice(plan.manifest, programs, plan.threads or torch.get_num_threads())
        case "cuda":
            from flare.device.cuda import CudaDevice  # only here: a CPU core needs nothing of it

            return CudaDevice(plan.manifest, programs, owned, progress)


def graph_bytes(plan: Plan, prepare: Callable[[], tuple[Sequence[Program], Iterable[Tensor]]]) -> int:
    """Bytes that the plan's graphs will hold beside its items, from capturing the largest of them once.

    Args:
        prepare: programs over storage of the plan's extent, and that storage, which is freed afterwards; called only
            where graphs hold anything.
    """
    match plan.device:
        case "cpu":
            return 0
        case "cuda":
            from flare.device.cuda_trial import trial_bytes

            return trial_bytes(plan.manifest, *prepare())
