"""The machine: versions, copy bandwidth, what replaying one tiny kernel costs."""

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from flare.bench.gpu.visit import Visit, summary
from flare.device.stopwatch import median_us

PACKAGES = ("flare", "torch", "triton", "flashinfer", "fla", "transformers", "numpy")
COPY_BYTES = 1 << 30


def measure(visit: Visit) -> dict[str, Any]:
    """Bandwidth in bytes per second, and microseconds of one tiny kernel in a graph of its own."""
    watch, device = visit.watch, visit.device
    size = 1 << 20 if visit.dry else COPY_BYTES
    source = torch.zeros(size // 4, dtype=torch.float32, device=device)
    target, one = torch.empty_like(source), torch.zeros(1, device=device)
    copy_us = median_us(watch, lambda: torch.add(source, 1.0, out=target), replays=visit.sizes.replays)
    read_us = median_us(watch, lambda: source.sum(), replays=visit.sizes.replays)
    tiny = watch.replays_us(watch.record(lambda: one.add_(1.0)), visit.sizes.replays)
    many_us = median_us(watch, lambda: one.add_(1.0), inner=100, replays=visit.sizes.replays)
    return {
        "copy_bytes_per_s": 2 * size / copy_us * 1e6,
        "read_bytes_per_s": size / read_us * 1e6,
        "tiny_replay_us": summary(tiny),
        "tiny_kernel_within_a_graph_us": many_us,
    }


def versions() -> dict[str, str | None]:
    """Versions of what matters; None where it is absent."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unpacked" if find_spec(name) is not None else None
