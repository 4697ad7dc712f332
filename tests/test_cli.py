"""The command line: a user's mistake is one line on standard error and status 2; a bug keeps its traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from flare import cli

HOUSE = Path(cli.__file__).resolve().parent.parent
SMOLLM2 = ["+recipe=smollm2", "recipe.target.type=fake_recipe:Target", "recipe.drafter.type=fake_recipe:Drafter"]
ACTION = '''
"""An action that shows what it was told, or fails as its seed says."""
from flare.errors import RequestError


def run(config, folder):
    if config.sampling.seed == 1:
        raise RequestError("the prompt is longer than the context")
    if config.sampling.seed == 2:
        raise KeyboardInterrupt
    if config.sampling.seed == 3:
        raise ZeroDivisionError("a bug")
    print(f"{config.prompt!r} {config.serving.fixed_width} {folder.is_dir()} {folder.parent.parent.name} {folder.name}")
'''


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, a fake model, and an action that prints."""
    for folder in ("modules", "work"):
        (tmp_path / folder).mkdir()
    (tmp_path / "modules" / "fake_action.py").write_text(ACTION)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(str(HOUSE / "tests" / "config"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "fake_action", raising=False)
    monkeypatch.setitem(cli.ACTIONS, "generate", cli.Action("fake_action:run", "print"))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "Name a recipe: flare +recipe=NAME   ("),
        (["prompt=Hi"], "Name a recipe: flare +recipe=NAME   ("),
        (["+recipe=glm"], "Unknown recipe 'glm'. Available: "),
        (["recipe=smolm2"], "Unknown recipe 'smolm2'. Did you mean smollm2? Available: "),
        ([*SMOLLM2, "serving.mtp_draft_token=5"], "Unknown override 'serving.mtp_draft_token'. Did you mean "),
        ([*SMOLLM2, "sampling.temperature=-1"], "sampling.temperature=-1, but it must be at least 0"),
        ([*SMOLLM2, "serving.mtp_draft_tokens=9"], "serving.mtp_draft_tokens=9, but smollm2's drafter stops at 7"),
        ([*SMOLLM2, "preparation.speculative_widths=[2,3]"], "preparation.speculative_widths=[2,3], but widths must"),
        ([*SMOLLM2, "serving.concurrency=0"], "serving.concurrency=0, but it must be at least 1"),
        ([*SMOLLM2, "serving.fixed_width=9"], "serving.fixed_width=9, but the prepared widths are"),
        ([*SMOLLM2, "-m", "serving.mtp_draft_tokens=5,9,3"], "serving.mtp_draft_tokens=9, but smollm2's drafter"),
        ([*SMOLLM2, "serving.fixed_width=1,2"], "serving.fixed_width=1,2 names several values; add -m"),
        ([*SMOLLM2, "Hello"], "'Hello' is no key=value"),
        ([*SMOLLM2, "sampling.seed=1"], "the prompt is longer than the context"),
        ([*SMOLLM2[::2], "recipe.target.type=none.here:T"], "recipe.target.type=none.here:T cannot be imported"),
        (["--config-dir", "nowhere", "+recipe=x"], "--config-dir nowhere is no folder"),
        (["--fast", *SMOLLM2], "Unknown flag --fast; flare --help lists the flags"),
        ([*SMOLLM2, "hydra.nonsense=1"], "Could not override 'hydra.nonsense'."),
    ],
)
def test_a_mistake_is_one_line_and_status_two(argv, sentence, capsys):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith(sentence)
    assert (out, err.count("\n")) == ("", 1)


def test_an_answer_is_all_that_standard_output_holds(capsys):
    assert cli.main([*SMOLLM2, "prompt=Hi, who's there? (a: b)"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith('"Hi, who\'s there? (a: b)" None True smollm2 ')
    assert (out.count("\n"), err) == (1, "")


def test_a_dash_reaches_the_action_as_it_is(capsys):
    assert cli.main([*SMOLLM2, "prompt=-"]) == 0
    assert capsys.readouterr().out.startswith("'-' ")


def test_a_sweep_runs_each_point_in_its_own_folder(capsys):
    assert cli.main(["-m", *SMOLLM2, "serving.fixed_width=1,2,4", "prompt=a,b"]) == 0
    assert [line.split()[:3] + line.split()[4:] for line in capsys.readouterr().out.splitlines()] == [
        ["'a,b'", width, "True", str(number)] for number, width in enumerate("124")
    ]


def test_a_point_that_fails_does_not_stop_the_others(capsys):
    assert cli.main(["-m", *SMOLLM2, "sampling.seed=0,1,5"]) == 2
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (2, "the prompt is longer than the context\n")


def test_an_invalid_point_keeps_all_from_running(capsys):
    assert cli.main(["-m", *SMOLLM2, "serving.mtp_draft_tokens=5,9,3"]) == 2
    assert capsys.readouterr().out == ""
    assert not Path("outputs").exists()


def test_ctrl_c_is_quiet(capsys):
    assert cli.main([*SMOLLM2, "sampling.seed=2"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_raised():
    with pytest.raises(ZeroDivisionError, match="a bug"):
        cli.main([*SMOLLM2, "sampling.seed=3"])


def test_a_recipe_may_live_in_the_current_folder(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.delitem(sys.modules, "my_recipe", raising=False)
    Path("my_recipe.py").write_text((HOUSE / "tests" / "config" / "fake_recipe.py").read_text())
    Path("conf/recipe").mkdir(parents=True)
    Path("conf/recipe/mine.yaml").write_text(
        "# @package _global_\ndefaults: [smollm2]\nrecipe: {name: mine, target: {type: 'my_recipe:Target'}, "
        "drafter: {type: 'my_recipe:Drafter'}}\n"
    )
    # Flags may stand among the overrides.
    assert cli.main(["+recipe=mine", "--config-dir", "conf", "prompt=x"]) == 0
    assert "'x' None True mine" in capsys.readouterr().out


def test_hydra_shows_the_composed_configuration(capsys):
    assert cli.main([*SMOLLM2, "--cfg", "job", "serving.concurrency=3"]) == 0
    assert "concurrency: 3" in capsys.readouterr().out


def test_help_and_a_closed_pipe_need_no_torch():
    started = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "flare", "--help"],
        cwd=HOUSE,
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {line.rpartition("|")[2].strip() for line in started.stderr.splitlines()}
    assert "flare.config.help" in modules
    assert not modules & {"torch", "hydra"}
    command = f"'{sys.executable}' -m flare --help | true; echo ${{PIPESTATUS[0]}}"
    closed = subprocess.run(["bash", "-c", command], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert closed.stderr == ""
    assert closed.stdout.strip() in ("0", "141")  # 0 where the pipe took everything before its reader left
