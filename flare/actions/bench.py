"""`action=bench`: measure what `workload.*` selects; samples as JSON, tables on the screen, one HTML page."""

import json
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from rich.console import Console

from flare.actions.prepare import prepared
from flare.bench.arms import whole
from flare.bench.machine import circumstances
from flare.bench.run import run_parts, settings_of
from flare.config.config import Config
from flare.report.bench import DRAW
from flare.report.bench_page import WIDTH, page

RESULT, PAGE = "result.json", "report.html"


def run(config: Config, folder: Path) -> None:
    """Write `result.json` and `report.html` into the run folder, anew after each part: a stop loses one part only."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    own = config.workload.arms == "own" or (config.workload.arms == "auto" and in_sweep())
    with prepared(whole(config), whole_catalog=True) as core:
        document: dict[str, Any] = {**circumstances(core), **settings_of(config), "own": own, "parts": {}}
        for name, data in run_parts(core, config, own, _note):
            document["parts"][name] = data
            (folder / RESULT).write_text(json.dumps(document), encoding="utf-8")
            (folder / PAGE).write_text(page(document), encoding="utf-8")
            if config.output == "rich":
                for table in DRAW[name](data):
                    console.print(table)
    if config.output == "json":
        print(json.dumps(document))
    else:
        console.print(f"{folder / RESULT}\n{folder / PAGE}", soft_wrap=True)


def in_sweep() -> bool:
    """Whether this run is one point of `-m`."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _note(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)
