"""`action=synthesize`: seeded weights in the recipe's own repository layout, for machines without the real ones."""

import json
from pathlib import Path

from flare.build import synthesize
from flare.config.config import Config


def run(config: Config, _folder: Path) -> None:
    """Write the checkpoint unless it is there, and print its folder."""
    folder = synthesize(config)
    print(json.dumps({"folder": str(folder)}) if config.output == "json" else folder)
