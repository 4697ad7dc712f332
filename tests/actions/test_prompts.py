"""Prompts of a file: what a line may hold, and mistakes told by line."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from flare.actions.prompts import read_prompts
from flare.errors import ConfigError


def read(folder: Path, *lines: str):
    (folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return read_prompts(SimpleNamespace(prompts=folder / "p.jsonl"))  # type: ignore[arg-type]


def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path):
    texts = ["a\u2028b\u0085c", "second"]
    lines = read(tmp_path, *(json.dumps(text, ensure_ascii=False) for text in texts))
    assert [line.prompt for line in lines] == texts


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    assert read(tmp_path, '\ufeff"Hi"')[0].prompt == "Hi"


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "x", "sampling": {"temperature": -1}}',
        '{"prompt": "x", "sampling": {"temperature": 1' + "0" * 400 + "}}",
        '{"prompt": "x", "sampling": {"seed": 1' + "0" * 5000 + "}}",
        '{"token_ids": "abc"}',
        '{"messages": "abc"}',
        '{"prompt": [1, 2]}',
        "[" * 100_000,
    ],
)
def test_a_bad_line_is_told_by_its_number(tmp_path, line):
    with pytest.raises(ConfigError, match=r"p\.jsonl, line 2\b"):
        read(tmp_path, '"fine"', line)
