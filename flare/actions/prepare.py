"""Preparing a core with progress a person can see, for the actions that run one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flare.build import Core, build
from flare.config.config import Config
from flare.runtime.engine import Engine

STAGES = {
    "download": "downloading weights",
    "unpack": "unpacking weights",
    "load": "loading weights",
    "warm up": "warming up kernels",
    "capture": "capturing graphs",
}


@contextmanager
def running_engine(config: Config) -> Iterator[Engine]:
    """An engine over a fresh core; both are closed at the end, whatever happens."""
    with prepared(config) as core, Engine(core) as engine:
        yield engine


def prepared(config: Config, *, whole_catalog: bool = False) -> Core:
    """Build with bars on standard error; silent where nobody looks."""
    if not sys.stderr.isatty():
        return build(config, whole_catalog=whole_catalog)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(STAGES.get(stage, stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        return build(config, progress, whole_catalog=whole_catalog)
