"""What a person is told when a server is ready: where it is, what it serves, and how to call it."""

from flare.contract.manifest import PAGE_TOKENS
from flare.plan.plan import Plan


def serving_lines(url: str, model: str, plan: Plan, keyed: bool) -> list[str]:
    """URL, model, catalog and memory, and one line for a shell."""
    extent, graphs = plan.manifest.extent, plan.manifest.graphs
    widths = sorted({graph.token_capacity for graph in graphs if graph.kind in ("decode", "speculative")})
    key = ' -H "Authorization: Bearer $FLARE_API_KEY"' if keyed else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hi"}}]}}'
    return [
        f"serving  {url}",
        f"model    {model}: {extent.slots} at a time, {extent.context:,} tokens of context",
        f"catalog  {len(graphs)} graphs, rounds of width {', '.join(map(str, widths))}",
        f"memory   {plan.memory.total_bytes / 2**20:,.0f} MiB on {plan.device}, "
        f"{extent.pages:,} pages of {PAGE_TOKENS} tokens, {extent.snapshots} snapshots",
        f"call     curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'",
    ]
