"""The adaptive policy against every fixed width in simulated time, on a few of the settings the command runs."""

import json
import sys

import pytest

from flare.bench.control.__main__ import compare, main
from flare.bench.control.settings import CHANGES, CURVES, DRAFTS, settings
from flare.runtime.policy import Adaptive, Exploration
from flare.runtime.policy.costs import RoundCosts


@pytest.mark.parametrize("setting", settings(24, seed=0)[3:24:3], ids=lambda setting: setting.name)
def test_the_policy_loses_to_no_fixed_width(setting):
    comparison = compare(setting, 20_000)
    assert comparison.against_plain >= 0.985
    assert comparison.against_best >= comparison.bar, comparison.best_width


def test_the_settings_cover_every_curve_every_kind_of_drafts_and_every_change():
    drawn = settings(24, seed=0)
    assert {setting.curve for setting in drawn} == set(CURVES)
    assert {setting.drafts for setting in drawn} == set(DRAFTS)
    assert {setting.change for setting in drawn} == set(CHANGES)
    assert drawn == settings(24, seed=0)
    assert drawn != settings(24, seed=1)


def test_a_policy_that_prices_unmeasured_rounds_by_the_prior_alone_is_caught(monkeypatch):
    """What a hopeless setting with steep costs found: plain rounds never ran, and were priced like the wide ones."""
    setting = next(each for each in settings(24, seed=0) if each.name == "steep/hopeless/stationary/4")
    monkeypatch.setattr(sys.modules[Adaptive.__module__], "PLAIN_ROUNDS", 0)
    priced = RoundCosts._priced

    def by_prior(costs: RoundCosts, batch: int) -> dict[int, float]:
        known = {width: each.mean for width, each in costs._measured[batch].items()}
        if not known:
            return priced(costs, batch)
        unit = sum(cost / (1 + batch * width / 32) for width, cost in known.items()) / len(known)
        return {width: known.get(width, unit * (1 + batch * width / 32)) for width in costs._widths[batch]}

    monkeypatch.setattr(RoundCosts, "_priced", by_prior)
    assert compare(setting, 5_000).against_plain < 0.95


def test_exploration_without_a_purse_is_caught(monkeypatch):
    setting = next(each for each in settings(24, seed=0) if each.name == "steep/hopeless/stationary/4")

    def rich(purse: Exploration, saved_seconds: float, round_seconds: float) -> None:
        purse.budget_seconds = 1e9

    monkeypatch.setattr(Exploration, "settle", rich)
    monkeypatch.setattr(sys.modules[Exploration.__module__], "MOST_SPACING_ROUNDS", 12)
    assert compare(setting, 5_000).against_plain < 0.985


def test_the_command_writes_a_table_and_a_plot(tmp_path, capsys):
    assert main(["--settings", "2", "--tokens", "800", "--out", str(tmp_path)]) in (0, 1)
    document = json.loads((tmp_path / "control.json").read_text())
    assert [entry["name"] for entry in document["settings"]] == [each.name for each in settings(2, seed=0)]
    assert (tmp_path / "regret.svg").stat().st_size > 1000
    assert "best fixed" in capsys.readouterr().out


def test_a_trial_repeats_itself():
    setting = settings(1, seed=5)[0]
    comparison, again = compare(setting, 1_000), compare(setting, 1_000)
    assert comparison.adaptive.curve == again.adaptive.curve
