"""A benchmark result as one self-contained HTML page: the tables, and intervals of the ratios as drawings (SVG)."""

import html
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from flare.report.bench import tables

Document = dict[str, Any]
WIDTH = 190
LABEL_PX, PLOT_PX, LINE_PX, TOP_PX = 280, 520, 22, 34
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    "pre{font:12px/1.35 monospace;overflow-x:auto}svg{display:block;margin:.5em 0 1.5em}dt{font-weight:bold}"
)


class Bar(NamedTuple):
    """One line of a drawing: a median with its interval, and the least value asked for."""

    label: str
    median: float
    low: float
    high: float
    bar: float | None = None


def page(document: Document) -> str:
    """The page of one run."""
    linear = f"{document['linear_format']} linear weights"
    about = {
        "recipe": ", ".join((document["recipe"], document["weights"], document["dtype"], linear)),
        "machine": ", ".join(f"{name} {value}" for name, value in document["device"].items()),
        "versions": ", ".join(f"{name} {value}" for name, value in document["versions"].items()),
        "command": document["command"],
        "started": document["started"],
    }
    facts = "".join(f"<dt>{name}</dt><dd>{html.escape(str(value))}</dd>" for name, value in about.items())
    drawn = "".join(drawings(document["parts"].get("arms", {"rows": []})["rows"]))
    return _html(f"Benchmark of {document['recipe']}", f"<dl>{facts}</dl>{drawn}{_text(tables(document))}")


def sweep_page(title: str, bars: Sequence[tuple[str, Sequence[Bar]]], table: Table) -> str:
    """The page of a sweep: one drawing per kind of turn, then the table."""
    drawn = "".join(f"<h2>{html.escape(kind)}</h2>{drawing(lines)}" for kind, lines in bars)
    return _html(title, f"{drawn}{_text([table])}")


def drawings(rows: Sequence[Document]) -> Iterator[str]:
    """A heading and a drawing for each law and kind of turn."""
    for setting, kind in dict.fromkeys((row["setting"], row["kind"]) for row in rows):
        chosen = [row for row in rows if (row["setting"], row["kind"]) == (setting, kind) and row["ratio"]]
        bars = [bar_of(row["arm"], row["ratio"], row["bar"]) for row in chosen]
        if bars:
            yield f"<h2>{html.escape(kind)}, {html.escape(setting)}: tokens per second over plain</h2>{drawing(bars)}"


def bar_of(label: str, estimate: Document, bar: float | None = None) -> Bar:
    """One line of a drawing."""
    return Bar(label, estimate["median"], estimate["low"], estimate["high"], bar)


def drawing(bars: Sequence[Bar]) -> str:
    """Medians as dots, intervals as lines, 1 as a grey line, each bar to reach as a tick."""
    most = max(1.1, *(max(bar.high, bar.bar or 0.0) for bar in bars)) * 1.05
    height = TOP_PX + LINE_PX * len(bars)

    def x(value: float) -> float:
        return LABEL_PX + PLOT_PX * value / most

    parts = [f'<svg role="img" width="{LABEL_PX + PLOT_PX + 90}" height="{height}" font-size="13">']
    for step in range(int(most) + 1):
        colour = "#888" if step == 1 else "#ddd"
        parts.append(f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="20" y2="{height}" stroke="{colour}"/>')
        parts.append(f'<text x="{x(step):.1f}" y="14" text-anchor="middle" fill="#666">{step}×</text>')
    for index, bar in enumerate(bars):
        y = TOP_PX + LINE_PX * index + 4
        parts.append(f'<text x="{LABEL_PX - 8}" y="{y + 4}" text-anchor="end">{html.escape(bar.label)}</text>')
        parts.append(
            f'<line x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}" y1="{y}" y2="{y}" stroke="#2563a8" stroke-width="3"/>'
        )
        parts.append(f'<circle cx="{x(bar.median):.1f}" cy="{y}" r="5" fill="#2563a8"/>')
        if bar.bar is not None:
            parts.append(f'<path d="M{x(bar.bar):.1f} {y - 9}v18" stroke="#b3261e" stroke-width="2"/>')
        parts.append(f'<text x="{x(bar.high) + 8:.1f}" y="{y + 4}">{bar.median:.2f}</text>')
    return "".join([*parts, "</svg>"])


def _text(drawn: Iterator[Table] | Sequence[Table]) -> str:
    console = Console(file=StringIO(), width=WIDTH, record=True, color_system=None)
    for table in drawn:
        console.print(table)
    return f"<pre>{html.escape(console.export_text())}</pre>"


def _html(title: str, body: str) -> str:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    return f"{head}<style>{STYLE}</style><h1>{html.escape(title)}</h1>{body}</html>\n"
