"""A benchmark result as rich tables, drawn from the document that `result.json` holds."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

Document = dict[str, Any]


def tables(document: Document) -> Iterator[Table]:
    """One or more tables for each part that was measured."""
    for name, part in document["parts"].items():
        yield from DRAW[name](part)


def arms_tables(part: Document) -> Iterator[Table]:
    """Ratios to plain decoding, a table per sampling law; then drafts, then what widths cost."""
    for setting in dict.fromkeys(row["setting"] for row in part["rows"]):
        rows = [row for row in part["rows"] if row["setting"] == setting]
        yield ratio_table(f"Tokens per second over plain decoding, {setting}", rows)
    yield acceptance_table(part["acceptance"])
    table = _table("A measured round over a plain round", "law", "width", "ratio", "rounds")
    for row in part["width_costs"]:
        table.add_row(row["setting"], str(row["width"]), interval(row["ratio"]), str(row["ratio"]["samples"]))
    yield table


def ratio_table(title: str, rows: list[Document]) -> Table:
    """Kinds of turns by arm: median and 95 % interval, the bar and whether it holds, speed, pairs left out."""
    table = _table(
        title,
        "turns",
        "arm",
        "ratio (95 %)",
        "bar",
        "tokens/s",
        "ms/token",
        "gap p99 ms",
        "a round",
        "pairs",
        "left out",
    )
    kind = None
    for row in rows:
        if kind not in (None, row["kind"]):
            table.add_section()
        table.add_row(
            row["kind"] if row["kind"] != kind else "",
            row["arm"],
            interval(row["ratio"]),
            verdict(row),
            f"{row['tokens_per_s']:.1f}",
            f"{row['tpot_ms']:.1f}",
            f"{row['gap_p99_ms']:.1f}",
            f"{row['emitted_per_round']:.2f}",
            str(row["ratio"]["samples"] if row["ratio"] else 0),
            left_out(row),
        )
        kind = row["kind"]
    return table


def acceptance_table(rows: list[Document]) -> Table:
    """Drafts by source, and by depth the share accepted where all before were."""
    table = _table("Drafts: accepted of offered", "law", "turns", "arm", "by source", "by depth, given all before")
    for row in rows:
        sources = ", ".join(f"{name} {kept} of {offered}" for name, (offered, kept) in row["sources"].items())
        depths = " ".join(f"{depth['share']:.0%}" for depth in row["depths"])
        table.add_row(row["setting"], row["kind"], row["arm"], sources, depths)
    return table


def stages_tables(part: list[Document]) -> Iterator[Table]:
    """Median milliseconds of each stage."""
    names = list(part[0]["stages"]) if part else []
    table = _table("Stages of a round, ms (share), measured in a run of their own", "arm", "width", "rounds", *names)
    for row in part:
        cells = [f"{stage['median']:.2f} ({stage['share']:.0%})" for stage in row["stages"].values()]
        table.add_row(row["arm"], str(row["width"]), str(row["rounds"]), *cells)
    yield table


def rounds_tables(part: list[Document]) -> Iterator[Table]:
    """Round costs by context and law."""
    columns = ("context", "law", "width", "ms (quartiles)", "over width 1 (95 %)", "bar", "rounds")
    table = _table("Cost of a round", *columns)
    group = None
    for row in part:
        if group not in (None, (row["context"], row["law"])):
            table.add_section()
        group = (row["context"], row["law"])
        table.add_row(
            str(row["context"]),
            row["law"],
            row["width"],
            interval(row["ms"]),
            interval(row["ratio"]),
            verdict(row, "≤"),
            str(row["ms"]["samples"]),
        )
    yield table


def overhead_tables(part: list[Document]) -> Iterator[Table]:
    """The engine over its bare replay."""
    columns = ("arm", "ratio (95 %)", "bar", "pairs", "engine µs/round", "idle device µs")
    table = _table("Engine over a bare replay of its own graphs", *columns)
    for row in part:
        table.add_row(
            row["arm"],
            interval(row["ratio"], 3),
            verdict(row, "≤"),
            str(row["ratio"]["samples"]),
            interval(row["host_us_per_round"], 0),
            interval(row["idle_device_us"], 0),
        )
    yield table


def versus_tables(part: Document) -> Iterator[Table]:
    """Other engines: above 1 this one is faster."""
    columns = ("work", "other", "theirs over ours (95 %)", "bar", "with prompt", "ours ms", "theirs ms", "pairs")
    table = _table("Other engines on the same weights, time per token", *columns)
    for row in part["comparisons"]:
        table.add_row(
            row["what"],
            row["other"],
            interval(row["ratio"]),
            verdict(row),
            interval(row["total_ratio"]),
            interval(row["ours_ms"]),
            interval(row["theirs_ms"]),
            str(row["ratio"]["samples"]),
        )
        for turn in row["by_turn"]:
            table.add_row("", f"  {turn['entry']}, turn {turn['turn']}", interval(turn["ratio"]))
    for name, reason in part["skipped"].items():
        table.add_row("skipped", name, reason)
    yield table


def interval(estimate: Document | None, digits: int = 2) -> str:
    """Median and bounds, or a dash."""
    if estimate is None:
        return "–"
    return f"{estimate['median']:.{digits}f} ({estimate['low']:.{digits}f}–{estimate['high']:.{digits}f})"


def verdict(row: Document, sign: str = "≥") -> str:
    """The bar of a row and whether its median holds it."""
    if row["bar"] is None:
        return ""
    return f"{sign} {row['bar']:.2f} {'yes' if row['holds'] else 'open' if row['holds'] is None else 'NO'}"


def left_out(row: Document) -> str:
    """Pairs that no ratio was made of, and why."""
    parts = [f"{row[what]} {what}" for what in ("looping", "failed") if row[what]]
    return ", ".join(parts)


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)


DRAW = {
    "arms": arms_tables,
    "stages": stages_tables,
    "rounds": rounds_tables,
    "overhead": overhead_tables,
    "versus": versus_tables,
}
