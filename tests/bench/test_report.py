"""Reports and comparisons: everything measured is shown, failures keep their line, pages are well-formed."""

import json
from xml.etree import ElementTree

import pytest
import yaml

from flare.actions.compare import after_sweep
from flare.bench.summary import acceptance, ratio_rows, width_costs
from flare.report.bench import tables, verdict
from flare.report.bench_page import Bar, drawing, page
from tests.bench.observations import observed


def document(speed=15.0, failed=False):
    """A result of one block."""
    error = {"error": "no pages left"} if failed else {}
    seen = [observed("plain", 0, 0, 10), observed("own", 0, 1, speed, depths=((4, 3),), **error)]
    estimate = {"median": 1.02, "low": 1.0, "high": 1.04, "samples": 9}
    bar = {"bar": 1.25, "holds": True}
    return {
        "recipe": "smollm2", "weights": "a.gguf", "dtype": "bfloat16", "linear_format": "dense",
        "device": {"cores": 2}, "versions": {"torch": "2"}, "command": "flare <x>", "started": "now",
        "parts": {
            "arms": {
                "rows": [row.to_json() for row in ratio_rows(seen)],
                "acceptance": acceptance(seen),
                "width_costs": width_costs(seen),
                "observations": [each.to_json() for each in seen],
            },
            "rounds": [
                {"context": 256, "law": "recipe sampling", "width": "8", **bar, "ms": estimate, "ratio": estimate}
            ],
            "overhead": [
                {"arm": "plain", **bar, "ratio": estimate, "host_us_per_round": estimate, "idle_device_us": estimate}
            ],
            "stages": [
                {"arm": "a", "width": 8, "rounds": 3, "stages": {"verify": {"median": 20.0, "share": 0.9}}}
            ],
            "versus": {"comparisons": [], "skipped": {"llama.cpp": "xllamacpp is not installed"}},
        },
    }  # fmt: skip


def test_a_result_survives_json_and_every_part_is_on_the_page():
    text = page(json.loads(json.dumps(document())))
    for shown in ("tokens per second over plain", "1.50 (1.50–1.50)", "20.00 (90%)", "1.020", "not installed"):
        assert shown in text
    assert "flare &lt;x&gt;" in text


def test_every_part_has_a_table():
    assert len(list(tables(document()))) == 7


def test_a_drawing_is_well_formed_and_names_its_lines():
    root = ElementTree.fromstring(drawing([Bar("width 8 & <more>", 1.5, 1.2, 1.9, 1.5), Bar("b", 0.9, 0.8, 1.0)]))
    texts = [node.text for node in root.iter("text")]
    assert "width 8 & <more>" in texts
    assert "1.50" in texts
    assert "0.90" in texts


@pytest.mark.parametrize(("holds", "said"), [(True, "≥ 1.50 yes"), (False, "≥ 1.50 NO"), (None, "≥ 1.50 open")])
def test_a_verdict_is_a_word(holds, said):
    assert verdict({"bar": 1.5, "holds": holds}) == said


def sweep(folder, action, results):
    for number, (width, result) in enumerate(results.items()):
        hydra = folder / str(number) / ".hydra"
        hydra.mkdir(parents=True)
        (hydra / "config.yaml").write_text(yaml.safe_dump({"action": action, "output": "rich"}))
        words = ["+recipe=smollm2", f"++action={action}", f"++serving.fixed_width={width}"]
        (hydra / "overrides.yaml").write_text(yaml.safe_dump(words))
        for name, text in result.items():
            (folder / str(number) / name).write_text(text)


def test_a_sweep_ends_in_one_table_with_its_best_and_its_failures(tmp_path, capsys):
    results = {
        1: {"result.json": json.dumps(document(9.0))},
        4: {"result.json": json.dumps(document(18.0))},
        8: {},
    }
    sweep(tmp_path, "bench", results)
    after_sweep(tmp_path)
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines() if "serving.fixed_width" in line]
    assert [line[0] for line in lines] == [f"serving.fixed_width={width}" for width in (1, 4, 8)]
    assert [line[-1] for line in lines] == ["(0.90–0.90)×", "*", "failed"]
    assert "recipe=smollm2" not in said
    assert "<svg" in (tmp_path / "comparison.html").read_text()


def test_a_sweep_of_generate_compares_speeds(tmp_path, capsys):
    line = json.dumps({"timing": {"tokens_per_s": 50.0}}) + "\n"
    sweep(tmp_path, "generate", {1: {"completions.jsonl": line}, 4: {"completions.jsonl": line}})
    after_sweep(tmp_path)
    assert "50.00" in capsys.readouterr().out
    assert not (tmp_path / "comparison.html").exists()


def test_other_sweeps_and_empty_folders_say_nothing(tmp_path, capsys):
    after_sweep(tmp_path)
    sweep(tmp_path, "plan", {1: {}})
    after_sweep(tmp_path)
    assert capsys.readouterr().out == ""
