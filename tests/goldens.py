"""Golden files: tensors and parameters of one safetensors file whose header says where it came from."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of `golden/{name}.safetensors`, and the parameters its header holds."""
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["params"])  # noqa: SIM118
