"""`python -m flare.bench.control`: the adaptive policy against every fixed width, in simulated time."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flare.bench.control.settings import BATCHES, WIDTHS, Setting, settings
from flare.bench.control.trial import Trial, trial
from flare.runtime.policy import Prior, adaptive, fixed
from flare.runtime.policy.choice import Widths

WIDTHS_BY_BATCH: Widths = dict.fromkeys(BATCHES, WIDTHS)
EXPLORATION_SHARE = 0.05


@dataclass(frozen=True)
class Comparison:
    """The adaptive policy and every fixed width in one setting."""

    setting: Setting
    adaptive: Trial
    fixed: dict[int, Trial]

    @property
    def best_width(self) -> int:
        """The fixed width that was fastest on this text."""
        return min(self.fixed, key=lambda width: self.fixed[width].seconds / self.fixed[width].tokens)

    @property
    def against_plain(self) -> float:
        """Tokens per second over those of no speculation."""
        return self.adaptive.rate / self.fixed[1].rate

    @property
    def against_best(self) -> float:
        """Tokens per second over those of the best fixed width."""
        return self.adaptive.rate / self.fixed[self.best_width].rate

    @property
    def oracle(self) -> float:
        """Tokens per second of one who switches to each phase's best fixed width at once, over the best single one."""
        phases = [phase for phase in (0, 1) if self.fixed[1].phases[phase][0]]
        shares = [self.fixed[self.best_width].phases[phase][0] for phase in phases]
        paces = [min(run.phases[phase][1] / run.phases[phase][0] for run in self.fixed.values()) for phase in phases]
        ideal = sum(share * pace for share, pace in zip(shares, paces, strict=True))
        return self.fixed[self.best_width].seconds / ideal

    @property
    def turns(self) -> bool:
        """Whether the change asks for another width: switching at each change would gain two per cent or more."""
        return self.oracle >= 1.02

    @property
    def bar(self) -> float:
        """The least `against_best` asked for: one where the best width changes, a little less where it stays."""
        return 1.0 if self.turns else 0.97

    @property
    def holds(self) -> bool:
        return self.against_plain >= 0.985 and self.against_best >= self.bar

    def regret(self) -> list[tuple[int, float]]:
        """(tokens, simulated seconds behind the best fixed width), now and then."""
        rate = self.fixed[self.best_width].rate
        return [(tokens, seconds - tokens / rate) for tokens, seconds in self.adaptive.curve]


def compare(setting: Setting, tokens: int) -> Comparison:
    """Run the policies one after the other on the same text."""
    learned = trial(setting, adaptive(WIDTHS_BY_BATCH, Prior(), EXPLORATION_SHARE), tokens)
    return Comparison(
        setting, learned, {width: trial(setting, fixed(WIDTHS_BY_BATCH, width), tokens) for width in WIDTHS}
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table, write JSON and the plot where `--out` says; status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m flare.bench.control", description=__doc__)
    parser.add_argument("--settings", type=int, default=24, help="how many settings")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of each trial")
    parser.add_argument("--seed", type=int, default=0, help="of the settings and their texts")
    parser.add_argument("--out", type=Path, help="folder for control.json and regret.svg")
    options = parser.parse_args(arguments)
    if options.out is not None and find_spec("matplotlib") is None:
        parser.error("--out draws a plot, which needs matplotlib: pip install 'flare[bench]'")
    comparisons = [compare(setting, options.tokens) for setting in settings(options.settings, options.seed)]
    Console(width=120).print(table(comparisons))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        document = {"tokens": options.tokens, "seed": options.seed, "settings": [entry(each) for each in comparisons]}
        (options.out / "control.json").write_text(json.dumps(document, indent=1) + "\n")
        plot(comparisons, options.out / "regret.svg")
    return 0 if all(comparison.holds for comparison in comparisons) else 1


def table(comparisons: Sequence[Comparison]) -> Table:
    """One line per setting."""
    lines = Table(title="adaptive policy, simulated time")
    for column in ("setting", "best fixed", "/ plain", "/ best fixed", "bar", "oracle", "widths run", ""):
        lines.add_column(column, justify="left" if column in ("setting", "widths run") else "right")
    for each in comparisons:
        common = sorted(each.adaptive.widths, key=lambda width: -each.adaptive.widths[width])[:3]
        shares = ", ".join(f"{width}: {each.adaptive.widths[width] / each.adaptive.rounds:.0%}" for width in common)
        lines.add_row(
            each.setting.name,
            f"W{each.best_width}",
            f"{each.against_plain:.3f}",
            f"{each.against_best:.3f}",
            f"{each.bar:.2f}",
            f"{each.oracle:.3f}",
            shares,
            "" if each.holds else "missed",
        )
    return lines


def entry(comparison: Comparison) -> dict[str, object]:
    """What `control.json` keeps of one setting."""
    return {
        **asdict(comparison.setting),
        "name": comparison.setting.name,
        "against_plain": comparison.against_plain,
        "against_best": comparison.against_best,
        "oracle": comparison.oracle,
        "best_width": comparison.best_width,
        "widths": comparison.adaptive.widths,
        "fixed_rates": {width: run.rate for width, run in comparison.fixed.items()},
        "regret": comparison.regret(),
    }


def plot(comparisons: Sequence[Comparison], path: Path) -> None:
    """Regret against the best fixed width over the tokens, one line per setting; below zero is ahead of it."""
    from matplotlib.figure import Figure  # only plots need it

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.add_subplot()
    for each in comparisons:
        rounds = [(tokens, behind / each.setting.plain_seconds) for tokens, behind in each.regret()]
        axes.plot(*zip(*rounds, strict=True), label=each.setting.name, linewidth=1)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(xlabel="tokens", ylabel="regret, plain rounds of one lane", title="against the best single fixed width")
    axes.set_yscale("symlog", linthresh=10)
    axes.legend(fontsize=7, ncols=2, loc="lower left")
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
