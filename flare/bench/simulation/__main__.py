"""`python -m flare.bench.simulation --rounds 50000 --seeds 20 --faults`: exit status 1 if anything was wrong."""

import argparse
import json
import sys
from collections.abc import Sequence

from flare.bench.simulation.host_time import host_time
from flare.bench.simulation.report import SeedResult, as_document, as_text
from flare.bench.simulation.scenario import scenario_of
from flare.bench.simulation.simulation import simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and print its report."""
    wishes = parser().parse_args(arguments)
    if wishes.unchecked:
        measured = host_time(wishes.rounds, wishes.batch, wishes.seed)
        print(json.dumps(measured.as_document(), indent=1) if wishes.json else measured.as_text())
        return 0
    results: list[SeedResult] = []
    for seed in range(wishes.seed, wishes.seed + wishes.seeds):
        results.append(simulate(scenario_of(seed, wishes.faults), -(-wishes.rounds // wishes.seeds)))
        if results[-1].error and wishes.first:
            break
    print(json.dumps(as_document(results), indent=1) if wishes.json else as_text(results))
    return int(any(result.error for result in results))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m flare.bench.simulation", description=__doc__)
    made.add_argument("--rounds", type=int, default=50_000, help="rounds of all seeds together")
    made.add_argument("--seed", type=int, default=0, help="the first seed")
    made.add_argument("--seeds", type=int, default=1, help="how many seeds share the rounds")
    made.add_argument("--faults", action="store_true", help="cancellations, disconnects, bursts, failed replays")
    made.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    made.add_argument("--unchecked", action="store_true", help="no checks: measure the host's time per round instead")
    made.add_argument("--batch", type=int, default=4, help="requests that run at a time in the unchecked measurement")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


if __name__ == "__main__":
    sys.exit(main())
