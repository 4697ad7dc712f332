"""How much memory a device can give a core."""

import os
from pathlib import Path

from flare.plan.plan import DeviceName

MEMINFO = Path("/proc/meminfo")


def available_bytes(device: DeviceName) -> int:
    """Bytes that can be had now; on systems that only tell the whole, the whole."""
    assert device == "cpu", device
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
