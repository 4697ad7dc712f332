"""A visit: `python3 -m flare.bench.gpu --out FOLDER [--parts a,b] [--dry-run]`, on a machine with a CUDA device.

Every part writes into `visit.json` as soon as it is done, so that whatever ends the visit loses one part at most. A
part that fails leaves its traceback there, one that runs too long is cut off, and the others go on.
"""

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flare.bench.gpu import (
    baseline,
    catalogs,
    chains,
    engines,
    floor,
    kernels,
    laws,
    machine,
    qwen38,
    rounds,
    suite,
    versus,
)
from flare.bench.gpu.visit import Visit
from flare.bench.gpu.weights import joined
from flare.device.memory import cuda_usable
from flare.errors import FlareError


class Part(NamedTuple):
    """A part of a visit, and the seconds it may take."""

    run: Callable[[Visit], dict[str, Any]]
    limit_s: int


PARTS = {
    "machine": Part(machine.measure, 60),
    "floor": Part(floor.measure, 60),
    "sampling": Part(laws.measure, 120),
    "chains": Part(chains.sampling_times, 120),
    "smollm2": Part(catalogs.smollm2, 420),
    "rounds": Part(rounds.measure, 120),
    "engine": Part(engines.measure, 120),
    "baseline": Part(baseline.measure, 180),
    "versus": Part(versus.measure, 150),
    "qwen38_small": Part(catalogs.qwen38_small, 420),
    "operators": Part(kernels.measure, 240),
    "qwen38_layers": Part(qwen38.measure, 180),
    "pytest": Part(suite.measure, 400),
}


class PartOverdue(Exception):  # noqa: N818  a clock, not a mistake
    """A part ran longer than it may."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the named parts; 1 where any failed."""
    parser = argparse.ArgumentParser(prog="python3 -m flare.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of visit.json")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--weights", type=Path, help="SmolLM2 as a GGUF file or a Hugging Face folder")
    parser.add_argument(
        "--weights-parts", type=Path, help="folder with the pieces of that file, in order of their names"
    )
    parser.add_argument("--synthetic", action="store_true", help="seeded weights of SmolLM2's geometry (the default)")
    parser.add_argument("--seconds", type=float, default=570.0, help="no part begins later or runs longer")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU: does every line run?")
    asked = parser.parse_args(words)
    names = [name for name in asked.parts.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not (asked.dry_run or cuda_usable()):
        parser.error("a visit needs a CUDA device and Triton; --dry-run runs every line in tiny sizes on a CPU")
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    visit = Visit(out=asked.out, dry=asked.dry_run, weights=None if asked.synthetic else _weights(asked))
    results = run_parts(visit, names, asked.seconds)
    failed = [name for name, result in results["parts"].items() if not result["ok"]]
    print("failed: " + ", ".join(failed) if failed else "all parts ran")
    return 1 if failed else 0


def run_parts(visit: Visit, names: Sequence[str], seconds: float) -> dict[str, Any]:
    """Every part's result under its name, with when and where; written after each of them."""
    began = time.perf_counter()
    results: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "dry_run": visit.dry,
        "weights": "seeded" if visit.weights is None else visit.weights.name,
        "device": visit.watch.facts(),
        "versions": machine.versions(),
        "parts": {},
    }
    try:
        for name in names:
            left = seconds - (time.perf_counter() - began)
            results["parts"][name] = guarded(PARTS[name], visit, left)
            print(f"{name}: {results['parts'][name]['seconds']:.1f} s, ok={results['parts'][name]['ok']}", flush=True)
            (visit.out / "visit.json").write_text(json.dumps(results, indent=1, default=str))
    finally:
        visit.close()
    return results


def guarded(part: Part, visit: Visit, left_s: float) -> dict[str, Any]:
    """A part's result, or why there is none."""
    if left_s < 1:
        return {"ok": False, "seconds": 0.0, "error": "no time was left"}
    began = time.perf_counter()
    try:
        with within(min(part.limit_s, int(left_s))):
            found = part.run(visit)
        outcome: dict[str, Any] = {"ok": True, **found}
    except FlareError as error:
        outcome = {"ok": False, "error": str(error), "traceback": traceback.format_exc()}
    except Exception as error:  # noqa: BLE001  one broken part must not take the others with it
        print(traceback.format_exc(), flush=True)
        outcome = {"ok": False, "error": repr(error), "traceback": traceback.format_exc()}
    return {"seconds": time.perf_counter() - began, **outcome}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise `PartOverdue` when the time is up and the interpreter next has a say."""

    def overdue(signum: int, frame: Any) -> None:  # noqa: ARG001  what a signal handler is given
        raise PartOverdue(f"cut off after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, overdue)
    signal.alarm(max(seconds, 1))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _weights(asked: argparse.Namespace) -> Path | None:
    if asked.weights_parts is None:
        return asked.weights
    return joined(list(asked.weights_parts.iterdir()), Path("/tmp/flare-weights.gguf"))
