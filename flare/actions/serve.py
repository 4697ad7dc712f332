"""`action=serve`: load the recipe's core behind a listening socket, then answer OpenAI clients until told to end."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flare.config.config import Config
from flare.errors import ConfigError
from flare.report.serving import serving_lines

if TYPE_CHECKING:
    from flare.build import Core

KEY = "FLARE_API_KEY"


def run(config: Config, folder: Path) -> None:  # noqa: ARG001  nothing is kept
    """Serve; progress and the log go to standard error, where the server is to standard output.

    Raises:
        ConfigError: the server extra is not installed, or the address is taken.
    """
    try:
        from flare.server.service import Service
    except ModuleNotFoundError as error:
        if str(error.name).startswith("flare"):
            raise
        raise ConfigError(f"action=serve needs {error.name}: pip install 'flare[server]'.") from error
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def load() -> "Core":
        from flare.actions.prepare import prepared  # torch takes seconds, and the socket is to listen before

        return prepared(config)

    service = Service(config, load, api_key=os.environ.get(KEY) or None)

    def announce(url: str, core: "Core") -> None:
        if config.output == "json":
            about = {"url": url, "model": config.model_name(), "graphs": len(core.manifest.graphs)}
            print(json.dumps(about | {"memory_bytes": core.plan.memory.total_bytes}), flush=True)
            return
        console = Console(highlight=False)
        for line in serving_lines(url, config.model_name(), core.plan, keyed=bool(os.environ.get(KEY))):
            console.print(line, markup=False, soft_wrap=True)

    print(f"{service.url} answers 503 while {config.recipe.name} loads.", file=sys.stderr)
    status = service.run(announce)
    if status:
        raise SystemExit(status)
