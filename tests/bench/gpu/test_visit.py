"""The visit's script runs from end to end on a CPU, and a part that breaks does not take the others with it."""

import json
import runpy
import sys

import pytest
import torch

from flare.bench.gpu import laws, script, suite
from flare.bench.gpu.visit import Visit
from flare.bench.gpu.weights import joined
from flare.errors import PlanError

PARTS = "machine,floor,sampling,smollm2,rounds,engine,baseline,operators"


@pytest.fixture(autouse=True)
def one_thread():
    before, graded = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.set_grad_enabled(graded)


def test_a_dry_run_runs_every_part(tmp_path):
    assert script.main(["--out", str(tmp_path), "--dry-run", "--parts", PARTS]) == 0
    document = json.loads((tmp_path / "visit.json").read_text())
    assert list(document["parts"]) == PARTS.split(",")
    assert all(part["ok"] for part in document["parts"].values())
    assert document["parts"]["smollm2"]["differing"] == []
    assert document["parts"]["sampling"]["same_draws_as_cpu"]["chains_that_differ"] == 0
    assert {"draft", "verify", "head", "commit"} <= set(document["parts"]["rounds"]["split"][-1]["stages_us"])


def test_a_broken_part_says_why_and_the_next_one_runs(tmp_path, monkeypatch):
    def broken(visit: Visit):
        raise RuntimeError("no such kernel")

    def refused(visit: Visit):
        raise PlanError("too little memory.")

    fine = script.PARTS["machine"]
    parts = {"a": script.Part(broken, 5), "b": script.Part(refused, 5), "c": fine}
    monkeypatch.setattr(script, "PARTS", parts)
    assert script.main(["--out", str(tmp_path), "--dry-run", "--parts", "a,b,c"]) == 1
    found = json.loads((tmp_path / "visit.json").read_text())["parts"]
    assert "no such kernel" in found["a"]["traceback"]
    assert found["b"]["error"] == "too little memory."
    assert found["c"]["ok"]


def test_a_part_that_never_ends_is_cut_off(tmp_path):
    def endless(visit: Visit):
        while True:
            pass

    visit = Visit(tmp_path, dry=True, weights=None)
    outcome = script.guarded(script.Part(endless, 1), visit, 60)
    assert not outcome["ok"]
    assert "cut off" in outcome["error"]


def test_no_part_begins_when_the_time_is_up(tmp_path):
    visit = Visit(tmp_path, dry=True, weights=None)
    assert script.guarded(script.PARTS["machine"], visit, 0.5)["error"] == "no time was left"


def test_the_suite_adds_up_all_files_and_names_those_that_fail(tmp_path, monkeypatch):
    said = {"a": ("3 passed, 1 skipped in 0.1s", 0), "b": ("1 failed, 2 passed in 0.2s", 1), "silent": ("", 9)}

    def command(path: str) -> list[str]:
        line, status = said.get(path, ("", 0))
        return [sys.executable, "-c", f"print({line!r}); raise SystemExit({status})"]

    monkeypatch.setattr(suite, "ALONE", ("silent",))
    monkeypatch.setattr(suite, "gpu_files", lambda folder: list(said))
    monkeypatch.setattr(suite, "command", command)
    found = suite.measure(Visit(tmp_path, dry=True, weights=None))
    assert found["counts"] == {"passed": 5, "skipped": 1, "failed": 1}
    assert not found["ok"] and list(found["failed"]) == ["b", "silent"]
    assert suite.measure(Visit(tmp_path, dry=False, weights=None))["failed"].keys() == {"a", "b", "silent"}
    assert all(f"## {path}" in (tmp_path / "pytest.txt").read_text() for path in said)


def test_a_carried_file_is_joined_in_the_order_of_its_pieces(tmp_path):
    for name, content in {"w.ab": b"second", "w.aa": b"first "}.items():
        (tmp_path / name).write_bytes(content)
    assert joined(list(tmp_path.iterdir()), tmp_path / "whole").read_bytes() == b"first second"


def test_the_chi_square_finds_a_wrong_law():
    law = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    assert laws.chi_square(torch.tensor([5010, 2990, 2000, 0]), law)["holds"]
    assert not laws.chi_square(torch.tensor([4000, 4000, 2000, 0]), law)["holds"]
    assert laws.chi_square(torch.tensor([5000, 3000, 1999, 1]), law)["outside_the_support"] == 1


def test_a_visit_without_a_device_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "cuda_usable", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        script.main(["--out", str(tmp_path / "visit")])
    assert "a visit needs a CUDA device and Triton; --dry-run" in capsys.readouterr().err
    assert not (tmp_path / "visit").exists()


def test_a_visit_without_triton_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module("flare.bench.gpu", run_name="__main__")
    assert capsys.readouterr().err == "a visit needs triton: python -m pip install 'flare[cuda]'\n"
