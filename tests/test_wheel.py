"""What `pip install flare` brings: code, `conf/` and `recipes/`, usable from any folder."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import flare

HOUSE = Path(flare.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder into which the built wheel, and nothing else, was installed."""
    built, target = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    _python("-m", "hatchling", "build", "-t", "wheel", "-d", str(built), cwd=HOUSE)
    (wheel,) = built.glob("flare-*.whl")
    with ZipFile(wheel) as content:
        folders = {name.split("/")[0] for name in content.namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"flare", "recipes", "conf"}
    _python("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel), cwd=built)
    return target


def _python(*words: str, cwd: Path, path: Path | None = None) -> str:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_house_arrives(installed: Path):
    for folder, pattern in (("flare", "*.py"), ("recipes", "*.py"), ("conf", "*.yaml")):
        there = {path.relative_to(installed) for path in (installed / folder).rglob(pattern)}
        assert there == {path.relative_to(HOUSE) for path in (HOUSE / folder).rglob(pattern)}


def test_help_lists_the_installed_recipes_from_another_folder(installed: Path, tmp_path: Path):
    where = _python("-c", "from flare.config.library import HOME; print(HOME)", cwd=tmp_path, path=installed)
    assert Path(where.strip()) == installed / "conf"
    text = _python("-m", "flare", "--help", cwd=tmp_path, path=installed)
    for recipe in (HOUSE / "conf" / "recipe").rglob("*.yaml"):
        assert f"\n  {recipe.stem} " in text


def test_the_console_script_knows_its_version(installed: Path, tmp_path: Path):
    assert _python(str(installed / "bin" / "flare"), "--version", cwd=tmp_path, path=installed).startswith("flare 0.")
