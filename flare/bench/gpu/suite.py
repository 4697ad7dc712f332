"""The GPU tests, in a process of their own: on a device every skip is a failure."""

import re
import subprocess
import sys
from typing import Any

from flare.bench.gpu.visit import Visit

TAIL_LINES = 60


def measure(visit: Visit) -> dict[str, Any]:
    """Run `pytest -m gpu`; counts, and the end of what it printed where a test failed or, on a device, was skipped."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        "tests",
    ]
    visit.close()  # the tests want the memory
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])}
    (visit.out / "pytest.txt").write_text("\n".join(lines))
    fine = done.returncode == 0 and (visit.dry or not counts.get("skipped"))
    ended = [] if fine else lines[-TAIL_LINES:]
    return {"ok": fine, "counts": counts, "command": " ".join(command), "end": ended}
