"""What simulations came to, as text for people and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HEADINGS = {
    "rounds": ("decode", "speculative", "wide rounds", "rounds behind a round", "dead lanes"),
    "tokens": ("offered", "accepted", "emitted"),
    "prompts": ("init", "prefill", "scored_prefill", "resume", "restore", "snapshot"),
    "prefixes": ("full hits", "boundary hits", "branch hits", "boundaries written", "chunk snapshots"),
}


@dataclass(frozen=True)
class SeedResult:
    """One seed's run.

    Attributes:
        error: the first thing that was wrong; None when nothing was.
        cpu_s: processor seconds of the whole run, checks included.
    """

    seed: int
    counts: Counter[str]
    cpu_s: float
    error: str | None = None

    @property
    def rounds(self) -> int:
        """Executed rounds."""
        return self.counts["decode"] + self.counts["speculative"]


def totals_of(results: Sequence[SeedResult]) -> Counter[str]:
    """Counts of all seeds together."""
    return sum((result.counts for result in results), Counter[str]())


def rounds_per_second(results: Sequence[SeedResult]) -> float:
    """Rounds per processor second over all seeds."""
    return sum(result.rounds for result in results) / max(sum(result.cpu_s for result in results), 1e-9)


def as_document(results: Sequence[SeedResult]) -> dict[str, Any]:
    """The JSON form: totals, and one entry per seed."""
    return {
        "rounds": sum(result.rounds for result in results),
        "rounds_per_cpu_s": round(rounds_per_second(results), 1),
        "failures": [result.seed for result in results if result.error],
        "totals": dict(sorted(totals_of(results).items())),
        "seeds": [
            {
                "seed": result.seed,
                "rounds": result.rounds,
                "cpu_s": round(result.cpu_s, 3),
                "error": result.error,
                "counts": dict(sorted(result.counts.items())),
            }
            for result in results
        ],
    }


def as_text(results: Sequence[SeedResult]) -> str:
    """A line per failed seed, then the totals under their headings."""
    totals = totals_of(results)
    rounds = sum(result.rounds for result in results)
    lines = [f"{rounds} rounds, {len(results)} seeds, {rounds_per_second(results):.0f} rounds per CPU second"]
    told: set[str] = set()
    for heading, names in HEADINGS.items():
        told |= set(names)
        lines.append(f"  {heading}: " + ", ".join(f"{name} {totals[name]}" for name in names))
    others = (f"{name} {count}" for name, count in sorted(totals.items()) if name not in told)
    lines.append("  requests and faults: " + ", ".join(others))
    lines += [
        f"seed {result.seed} FAILED after {result.rounds} rounds: {result.error}" for result in results if result.error
    ]
    return "\n".join(lines)
