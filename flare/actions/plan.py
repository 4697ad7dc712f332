"""`action=plan`: the catalog and the memory plan, from declarations alone — no weights, no GPU."""

import json
from pathlib import Path

from rich.console import Console

from flare.build import plan_parts
from flare.config.config import Config
from flare.report.plan import catalog_table, memory_table


def run(config: Config, folder: Path) -> None:
    """Print both tables, write `manifest.json` and `plan.json`; then refuse what does not fit."""
    plan = plan_parts(config).plan
    (folder / "manifest.json").write_text(json.dumps(plan.manifest.to_json(), indent=1))
    (folder / "plan.json").write_text(json.dumps(plan.memory.to_json(), indent=1))
    if config.output == "json":
        print(json.dumps({"manifest": plan.manifest.to_json(), "plan": plan.memory.to_json()}))
        plan.memory.check()
        return
    console = Console(highlight=False)
    console.print(catalog_table(plan))
    console.print(memory_table(plan))
    console.print(f"{folder / 'manifest.json'}\n{folder / 'plan.json'}", soft_wrap=True)
    plan.memory.check()
