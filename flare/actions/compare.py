"""What a sweep ends in: one table of all its points and one page, read from the points' own folders."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from flare.bench.statistics import quartiles
from flare.report.bench import interval
from flare.report.bench_page import WIDTH, Bar, bar_of, sweep_page

PAGE = "comparison.html"
PLAIN = "plain"
Rows = dict[str, dict[str, Any]]


class Point(NamedTuple):
    """One job of a sweep: what made it differ, and its row per kind of turn; none where it failed."""

    name: str
    rows: Rows


def after_sweep(folder: Path) -> None:
    """Print the comparison and, for a benchmark, keep it as `comparison.html` in the sweep's folder.

    Nothing is printed where `output` is not rich, since programs read those, nor where no point has a result.
    """
    jobs = sorted((path.parent.parent for path in folder.glob("*/.hydra/config.yaml")), key=_number)
    if not jobs:
        return
    config = yaml.safe_load((jobs[0] / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
    action = config["action"]
    points = list(read_points(jobs, READ[action])) if action in READ else []
    if not any(point.rows for point in points):
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    table = comparison(points)
    if config["output"] == "rich":
        console.print(table)
    if action == "bench":
        kinds = dict.fromkeys(kind for point in points for kind in point.rows)
        drawn = [(kind, bars_of(points, kind)) for kind in kinds]
        page = sweep_page("Sweep: tokens per second over plain decoding", drawn, table)
        (folder / PAGE).write_text(page, encoding="utf-8")
        if config["output"] == "rich":
            console.print(str(folder / PAGE), soft_wrap=True)


def read_points(jobs: list[Path], read: Callable[[Path], Rows]) -> Iterator[Point]:
    """The points in the order of the sweep, named by the overrides that they do not share."""
    words = [yaml.safe_load((job / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")) for job in jobs]
    shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
    for job, said in zip(jobs, words, strict=True):
        yield Point(", ".join(word.lstrip("+") for word in said if word not in shared) or job.name, read(job))


def comparison(points: list[Point]) -> Table:
    """A row per point and a column per kind of turn; the best of each column is marked with a star."""
    kinds = list(dict.fromkeys(kind for point in points for kind in point.rows))
    best = {kind: max(_median(point, kind) for point in points) for kind in kinds}
    table = Table("point", *kinds, title="Comparison", title_justify="left", box=box.SIMPLE_HEAD)
    for point in points:
        cells = [_cell(point, kind, best[kind]) for kind in kinds]
        table.add_row(point.name, *(cells if point.rows else ["failed"] * len(kinds)))
    return table


def bars_of(points: list[Point], kind: str) -> list[Bar]:
    """The drawing of one kind of turn."""
    found = [(point.name, point.rows[kind]["ratio"]) for point in points if kind in point.rows]
    return [bar_of(name, ratio) for name, ratio in found]


def _cell(point: Point, kind: str, best: float) -> str:
    row = point.rows.get(kind)
    if row is None:
        return "–"
    star = " *" if _median(point, kind) == best else ""
    return f"{interval(row['ratio'])}{row['unit']}{star}"


def _median(point: Point, kind: str) -> float:
    return point.rows[kind]["ratio"]["median"] if kind in point.rows else 0.0


def _bench_rows(job: Path) -> Rows:
    """Ratios to plain by kind of turn and law."""
    result = job / "result.json"
    if not result.is_file():
        return {}
    rows = json.loads(result.read_text(encoding="utf-8"))["parts"]["arms"]["rows"]
    return {
        f"{row['kind']}, {row['setting']}": {"ratio": row["ratio"], "unit": "×"}
        for row in rows
        if row["arm"] != PLAIN and row["ratio"] is not None
    }


def _generate_rows(job: Path) -> Rows:
    """Tokens per second of the job's completions, median and quartiles."""
    kept = job / "completions.jsonl"
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []
    speeds = quartiles([json.loads(line)["timing"]["tokens_per_s"] for line in lines])
    return {} if speeds is None else {"tokens per second": {"ratio": speeds._asdict(), "unit": ""}}


def _number(job: Path) -> tuple[int, str]:
    return (int(job.name), "") if job.name.isdecimal() else (1 << 31, job.name)


READ = {"bench": _bench_rows, "generate": _generate_rows}
