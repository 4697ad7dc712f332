"""How much memory a device can give a core, and whether there is a CUDA device for one."""

import os
from importlib.util import find_spec
from pathlib import Path

import torch

from flare.errors import PlanError
from flare.ops import CUDA_PACKAGES
from flare.plan.plan import DeviceName

MEMINFO = Path("/proc/meminfo")


def cuda_usable() -> bool:
    """Whether `preparation.device=auto` may take CUDA: a device is there, and what its operators are written in."""
    return all(find_spec(package) for package in CUDA_PACKAGES) and torch.cuda.is_available()


def available_bytes(device: DeviceName) -> int:
    """Bytes that can be had now; on systems that only tell the whole, the whole.

    Raises:
        PlanError: there is no such device.
    """
    return _cuda_bytes() if device == "cuda" else _host_bytes()


def _cuda_bytes() -> int:
    if not torch.cuda.is_available():
        raise PlanError(
            "preparation.device=cuda, but torch finds no CUDA device here; set preparation.device=cpu, or plan for "
            "another machine with preparation.memory_bytes"
        )
    free, _ = torch.cuda.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free + cached


def _host_bytes() -> int:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
