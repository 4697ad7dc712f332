"""What a measurement was made on: processor, memory, versions, command. Part of every `result.json`."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from flare.bench.versus import versions
from flare.build import Core


def circumstances(core: Core) -> dict[str, Any]:
    """Facts that a reader needs to compare with another machine's result."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["flare", *sys.argv[1:]]),
        "recipe": core.recipe,
        "weights": os.path.basename(core.origin),
        "device": {
            "kind": core.plan.device,
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads": core.plan.threads or torch.get_num_threads(),
            "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "dtype": core.plan.dtype,
        "linear_format": core.config.preparation.linear_format,
        "versions": {
            "flare": version("flare"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            **versions(),
        },
    }


def processor() -> str:
    """The processor's own name where the system tells it."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
