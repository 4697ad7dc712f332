"""The scheduler under simulation: many seeds with faults find nothing, and the report says what they met."""

import json

import pytest

from flare.bench.simulation.__main__ import main
from flare.bench.simulation.host_time import host_time
from flare.bench.simulation.report import as_document, as_text, totals_of
from flare.bench.simulation.scenario import scenario_of
from flare.bench.simulation.simulation import simulate

ROUNDS = 2_500
# What four seeds must come across: a simulation that never meets trouble proves nothing.
MET = (
    *("wide rounds", "rounds behind a round", "dead lanes", "preemptions", "bursts", "late completions", "disconnects"),
    *("full hits", "boundary hits", "branch hits", "boundaries written", "snapshot", "scored_prefill"),
    *(f"cancelled {phase}" for phase in ("waiting", "prefilling", "running")),
    *(f"cancelled with {count} rounds queued" for count in range(3)),
    *(f"failed replays with {count} rounds queued" for count in range(3)),
    *("lanes lost in a replay", "lanes not finite"),
)
GROUPS = [range(first, first + 4) for first in range(0, 20, 4)]


@pytest.mark.parametrize("seeds", GROUPS, ids=lambda seeds: f"seeds-{seeds[0]}-{seeds[-1]}")
def test_fifty_thousand_rounds_with_faults_break_nothing(seeds):
    results = [simulate(scenario_of(seed, faults=True), ROUNDS) for seed in seeds]
    assert [result.error for result in results] == [None] * len(results), as_text(results)
    assert all(result.rounds >= ROUNDS for result in results)
    totals = totals_of(results)
    assert [name for name in MET if not totals[name]] == []


def test_a_seed_without_faults_cancels_and_fails_nothing():
    result = simulate(scenario_of(1, faults=False), 800)
    assert result.error is None
    assert not any(name.startswith(("cancelled", "failure", "failed", "late")) for name in result.counts)
    assert result.counts["requests"] == result.counts["finished by stop"] + result.counts["finished by length"]


def test_a_seed_repeats_itself():
    first, second = (simulate(scenario_of(5, faults=True), 400) for _ in range(2))
    assert first.counts == second.counts


def test_the_command_prints_one_json_document(capsys):
    assert main(["--rounds", "300", "--seed", "3", "--seeds", "2", "--faults", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rounds"] >= 300 and document["failures"] == []
    assert [entry["seed"] for entry in document["seeds"]] == [3, 4]
    assert main(["--rounds", "100", "--seed", "3"]) == 0
    assert "1 seeds" in capsys.readouterr().out


def test_a_failed_seed_is_named_and_sets_the_exit_status(capsys, monkeypatch):
    monkeypatch.setattr("flare.runtime.memory.slots.Slots.release", lambda slots, slot: None)
    assert main(["--rounds", "100", "--seed", "3", "--seeds", "2", "--first"]) == 1
    printed = capsys.readouterr().out
    assert "seed 3 FAILED" in printed and "seed 4" not in printed


def test_text_and_document_report_the_same_rounds():
    results = [simulate(scenario_of(2, faults=True), 100)]
    assert as_text(results).startswith(f"{as_document(results)['rounds']} rounds")


def test_host_time_is_measured_over_rounds_alone():
    measured = host_time(rounds=100, batch=2, seed=0)
    assert measured.rounds == 100 and len(measured.windows_us) == 5
    assert 0 < measured.median_us <= measured.p99_us
