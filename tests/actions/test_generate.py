"""A batch answers what it can; what it cannot is said by line, at the end."""

import json

import pytest

from flare import cli
from tests.recipes.tiny_core import tiny_overrides


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return ["+recipe=smollm2", *tiny_overrides(tmp_path / "model"), "sampling.max_tokens=8", "output=json"]


def test_one_prompt_that_is_too_long_costs_the_others_nothing(command, tmp_path, capsys):
    lines = ["hello", "x " * 600, {"prompt": "bye", "sampling": {"seed": 1}}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert cli.main([*command, "prompts=p.jsonl"]) == 2
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "p.jsonl, line 2" in shown.err
    assert "context" in shown.err
    kept = next((tmp_path / "outputs").rglob("completions.jsonl")).read_text().splitlines()
    assert kept == shown.out.splitlines()


def test_several_completions_of_one_prompt_come_in_order(command, capsys):
    assert (
        cli.main(
            [
                *command,
                "prompt=hello",
                "sampling.n=3",
                "sampling.seed=5",
                "sampling.temperature=100",
                "sampling.top_k=0",
            ]
        )
        == 0
    )
    texts = [json.loads(line)["token_ids"] for line in capsys.readouterr().out.splitlines()]
    assert len(texts) == 3
    assert texts[0] != texts[1]
