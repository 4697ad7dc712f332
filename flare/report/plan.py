"""The plan as tables: the catalog as a grid of shapes, memory as bytes that add up."""

from collections.abc import Iterable

from rich import box
from rich.table import Table

from flare.contract.manifest import PAGE_TOKENS, ExecutionGraph
from flare.plan.memory import Item
from flare.plan.plan import Plan


def catalog_table(plan: Plan) -> Table:
    """One row per kind and batch capacity, with the token capacities or widths prepared for it."""
    graphs = plan.manifest.graphs
    title = f"Catalog: {len(graphs)} graphs selected of {len(plan.prepared)} prepared"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("kind")
    table.add_column("requests B", justify="right")
    table.add_column("tokens or widths W")
    table.add_column("graphs", justify="right")
    groups: dict[tuple[str, int], list[ExecutionGraph]] = {}
    for graph in graphs:
        groups.setdefault((graph.kind, graph.batch_capacity), []).append(graph)
    for (kind, batch), members in groups.items():
        capacities = ", ".join(str(graph.token_capacity) for graph in members if graph.token_capacity)
        table.add_row(kind, str(batch), capacities or "-", str(len(members)))
    return table


def memory_table(plan: Plan) -> Table:
    """Items of one kind and declaration together (layers repeat), opaque bounds apart, the total last."""
    memory, extent = plan.memory, plan.manifest.extent
    title = (
        f"Memory on {plan.device}, {plan.dtype}: {memory.pages} pages of {PAGE_TOKENS} tokens, "
        f"{extent.slots} slots, context {extent.context}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("kind", min_width=6)
    table.add_column("what", overflow="fold")
    for name, width in (("items", 5), ("bytes", 15), ("MiB", 9)):
        table.add_column(name, justify="right", min_width=width)
    exact = [item for item in memory.items if item.kind != "opaque"]
    opaque = [item for item in memory.items if item.kind == "opaque"]
    _add_groups(table, exact)
    table.add_section()
    _add_groups(table, opaque)
    table.add_section()
    table.add_row("", "total, opaque at its upper bound", str(len(memory.items)), *_sizes(memory.total_bytes))
    return table


def _add_groups(table: Table, items: Iterable[Item]) -> None:
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.kind, _family(item.name)), []).append(item)
    for (kind, family), members in groups.items():
        table.add_row(kind, family, str(len(members)), *_sizes(sum(item.bytes for item in members)))


def _family(name: str) -> str:
    """`layers.17.mlp.gate.weight` → `layers.*.mlp`: three names deep; the request table's columns go together."""
    if name.startswith("requests."):
        return "requests.*"
    return ".".join("*" if part.isdigit() else part for part in name.split(".")[:3])


def _sizes(size_bytes: int) -> tuple[str, str]:
    return f"{size_bytes:,}", f"{size_bytes / 2**20:,.1f}"
