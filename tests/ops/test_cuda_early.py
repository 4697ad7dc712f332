"""Kernels that are launched early read what they may before they wait, and write nothing; see `ops/cuda_early.py`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flare.ops.cuda_early import early
from tests.ops.triton_device import DEVICE

WAIT, BEGIN = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
ROOT = Path(__file__).parents[2]
# Weights, and what a round computes once: the kernel just before never writes these.
ALLOWED = {
    "linear_few": {"weight"},
    "linear_few, added": {"weight"},
    "gate_few": {"weight", "norm"},
    "head_few": {"weight", "norm", "cosines", "signed_sines", "index"},
    "attend_splits": {"lengths", "counts", "page_tables"},
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Triton IR by name, compiled in a process of its own: here kernels may be the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    command = [sys.executable, str(ROOT / "tests/ops/early_kernels.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def early_reads(ir: str) -> set[str]:
    """Arguments whose storage is read before the wait. The code up to there is straight."""
    arguments = set(re.findall(r"(%\w+): !tt\.ptr", ir))
    pointers: dict[str, set[str]] = {name: {name} for name in arguments}
    read: set[str] = set()
    for line in ir.split(WAIT)[0].splitlines():
        made, _, computed = line.strip().partition(" = ")
        assert "scf." not in computed
        operands = re.findall(r"%\w+", computed)
        if computed.startswith("tt.load"):
            read |= pointers[operands[0]]
        elif "!tt.ptr" in computed:
            pointers[made] = set().union(*(pointers.get(name, set()) for name in operands))
    return {name.removeprefix("%") for name in read}


@pytest.mark.parametrize("name", ALLOWED)
def test_only_weights_and_what_a_round_computes_once_are_read_early(name: str, kernels: dict[str, str]) -> None:
    assert early_reads(kernels[name]) == ALLOWED[name]


@pytest.mark.parametrize("name", ALLOWED)
def test_nothing_is_written_and_no_kernel_let_in_before_all_earlier_ones_have_ended(
    name: str, kernels: dict[str, str]
) -> None:
    before, *after = kernels[name].split(WAIT)
    assert len(after) == 1
    assert not re.search(r"tt\.store|atomic|" + re.escape(BEGIN), before)
    assert BEGIN in after[0].splitlines()[1]


def test_a_wait_that_comes_later_is_noticed(kernels: dict[str, str]) -> None:
    before, after = kernels["linear_few"].split(WAIT)
    straight, _, _ = after.partition("scf.")
    assert early_reads(before + straight + WAIT) == {"weight", "x"}


def test_kernels_are_launched_early_where_the_device_can() -> None:
    possible = DEVICE == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
    assert early(torch.zeros(1, device=DEVICE)) == {"EARLY": possible, "launch_pdl": possible}
