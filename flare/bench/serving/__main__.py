"""`python -m flare.bench.serving soak|overhead [key=value …]`: one JSON document; exit status 1 for a faulty soak."""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flare.bench.machine import processor
from flare.bench.serving import overhead, soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and print its document."""
    wishes = parser().parse_args(arguments)
    common = {"recipe": wishes.recipe, "overrides": tuple(wishes.overrides), "clients": wishes.clients}
    if wishes.what == "soak":
        chosen = {name: getattr(wishes, name) for name in ("seconds", "disconnect", "seed")}
        found = asyncio.run(soak.soak(soak.Wishes(**common, **chosen)))
    else:
        chosen = {name: getattr(wishes, name) for name in ("pairs", "tokens")}
        found = asyncio.run(overhead.overhead(overhead.Wishes(**common, **chosen)))
    document = json.dumps(_circumstances(wishes) | found, indent=1)
    if wishes.out is not None:
        wishes.out.write_text(document + "\n", encoding="utf-8")
    print(document)
    return int(bool(found.get("failures")))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m flare.bench.serving", description=__doc__)
    kinds = made.add_subparsers(dest="what", required=True)
    soaking = kinds.add_parser("soak", help="clients that come and go, then SIGTERM under load")
    soaking.add_argument("--clients", type=int, default=64, help="at a time")
    soaking.add_argument("--seconds", type=float, default=300.0, help="how long, a warm-up before it not counted")
    soaking.add_argument("--disconnect", type=float, default=0.3, help="share of requests whose client leaves early")
    soaking.add_argument("--seed", type=int, default=0, help="of what clients ask")
    comparing = kinds.add_parser("overhead", help="the server against its own engine in-process")
    comparing.add_argument("--clients", type=int, default=4, help="at a time")
    comparing.add_argument("--pairs", type=int, default=6, help="of runs, in both orders by turns")
    comparing.add_argument("--tokens", type=int, default=64, help="generated per prompt")
    for each in (soaking, comparing):
        each.add_argument("--recipe", default="smollm2")
        each.add_argument("--out", type=Path, help="also write the document here")
        each.add_argument("overrides", nargs="*", help="key=value, as for flare")
    return made


def _circumstances(wishes: argparse.Namespace) -> dict[str, Any]:
    """Facts that a reader needs to compare with another machine's result."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m flare.bench.serving", *sys.argv[1:]]),
        "recipe": wishes.recipe,
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "versions": {"flare": version("flare"), "python": platform.python_version(), "torch": version("torch")},
    }


if __name__ == "__main__":
    sys.exit(main())
