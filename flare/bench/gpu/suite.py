"""The GPU tests, a process for each file: those that compile side by side, then those that measure memory alone."""

import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flare.bench.gpu.visit import Visit

ALONE = ("tests/gpu/test_catalogs.py", "tests/gpu/test_closing.py")
AT_ONCE = 6
TAIL_LINES = 60


def measure(visit: Visit) -> dict[str, Any]:
    """Run every file with tests marked `gpu`; on a device a skip is as bad as a failure.

    What each file printed lies in `pytest.txt` as soon as it has ended, so that a cut-off run still says which tests
    failed.
    """
    visit.close()  # the tests want the memory
    paths = gpu_files(Path("tests"))
    output = visit.out / "pytest.txt"
    output.write_text("")

    def run(path: str) -> tuple[Counter[str], list[str] | None]:
        done = subprocess.run(command(path), capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        with output.open("a") as file:
            file.write("\n".join([f"## {path}", *lines, ""]))
        found = counted(lines)
        broken = done.returncode != 0 or (found["skipped"] > 0 and not visit.dry)
        return found, lines[-TAIL_LINES:] if broken else None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        beside = [path for path in paths if path not in ALONE]
        ran = dict(zip(beside, pool.map(run, beside), strict=True))
    ran |= {path: run(path) for path in ALONE}
    counts = sum((found for found, _ in ran.values()), Counter())
    failed = {path: end for path, (_, end) in ran.items() if end is not None}
    return {"ok": not failed, "counts": dict(counts), "command": " ".join(command("FILE")), "failed": failed}


def gpu_files(folder: Path) -> list[str]:
    """Files below the folder that mark a test `gpu`."""
    marked = (path for path in sorted(folder.rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text())
    return [path.as_posix() for path in marked]


def command(path: str) -> list[str]:
    """Pytest for one file, without the project's parallel run, which a borrowed machine may lack."""
    options = ["-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-W", "default"]
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-rs", "--tb=short", *options, path]


def counted(lines: list[str]) -> Counter[str]:
    """How many tests passed, failed, were skipped or broke before they began, by pytest's last line."""
    last = next((line for line in reversed(lines) if re.search(r" in [\d.]+s", line)), "")
    return Counter({what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last)})
