"""`action=bench` on the real model, as small as it gets: every sample is kept and the tables are drawn."""

import json

import pytest

from flare.cli import main

SMALL = [
    "workload=quick", "workload.budget_tokens=4", "workload.categories=[chat,long_context]", "workload.contexts=[64]",
    "workload.rounds=1", "workload.parts=[arms,rounds]", "preparation.context_length=512", "serving.concurrency=1",
]  # fmt: skip


@pytest.mark.usefixtures("smollm2_gguf")
def test_a_small_run_keeps_every_sample(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["+recipe=smollm2", "action=bench", "output=json", *SMALL]) == 0
    printed = json.loads(capsys.readouterr().out)
    (kept,) = tmp_path.glob("outputs/smollm2/bench/*/result.json")
    document = json.loads(kept.read_text())
    assert printed == document
    all_seen = document["parts"]["arms"]["observations"]
    seen = [each for each in all_seen if each["category"] == "chat"]
    assert [each["arm"] for each in seen] == [
        "plain",
        "width 8, history and context",
        "adaptive, history and context",
        "plain",
    ]
    assert {each["tokens"] for each in seen} == {4}
    assert all(len(each["rounds"]) >= 1 and each["error"] is None for each in seen)
    refused = [each for each in all_seen if each["category"] == "long_context"]
    assert len(refused) == 4
    assert all("this core's context ends at 512" in each["error"] for each in refused)
    lost = [row for row in document["parts"]["arms"]["rows"] if row["kind"] == "long_context"]
    assert [(row["failed"] > 0, row["ratio"]) for row in lost] == [(True, None)] * 3
    widths = [row["width"] for row in document["parts"]["rounds"] if row["law"] == "recipe sampling"]
    assert widths == ["1", "2", "4", "8", "ordinary"]
    assert document["device"]["threads"] >= 1
    assert (kept.parent / "report.html").read_text().startswith("<!doctype html>")
