"""Records the workload's token ids and answers: `python -m flare.bench.record [--answers] [category …]`.

Run it only after a change of the conversations: results are comparable only between equal files. Without `--answers`
the recorded answers are kept and prompts are rendered anew.
"""

import argparse
import sys
from dataclasses import replace

from flare.bench.entries import CATEGORIES, Entry, Turn, read_entries, render, with_turn, write_entries
from flare.build import prepare
from flare.runtime.engine import Engine
from flare.runtime.results import Completion
from flare.runtime.sampling import Sampling

RECIPE = "smollm2"
PLAIN = ("serving.mtp_draft_tokens=0", "preparation.context_length=4096")
ANSWER_TOKENS = 480
SEEDS = range(1, 9)
KEPT_LINES = 0.8


def main(words: list[str]) -> None:
    """Render, and with `--answers` generate, the conversations of the named categories (all without a name)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", action="store_true", help="generate the answers of all but the last turns")
    parser.add_argument("categories", nargs="*", default=CATEGORIES)
    chosen = parser.parse_args(words)
    with prepare(RECIPE, PLAIN) as core, Engine(core) as engine:
        for category in chosen.categories:
            entries = read_entries([category])
            write_entries(category, [record(entry, engine, chosen.answers) for entry in entries])


def record(entry: Entry, engine: Engine, answers: bool) -> Entry:
    """The conversation with each prompt rendered and, if wanted, each answer before the last drawn anew."""
    for index, turn in enumerate(entry.turns):
        turn = replace(turn, prompt_ids=render(entry, index, engine.vocabulary))
        if answers and index + 1 < len(entry.turns):
            turn = answered(turn.prompt_ids, turn, engine, reference(entry))
        entry = with_turn(entry, index, turn)
    return entry


def reference(entry: Entry) -> str:
    """The last thing the opening's assistant said, which edited answers should repeat; empty where nothing was."""
    said = [message["content"] for message in entry.opening if message["role"] == "assistant"]
    return said[-1] if said else ""


def answered(prompt_ids: tuple[int, ...], turn: Turn, engine: Engine, reference: str) -> Turn:
    """The turn with the first answer that ends by itself and keeps most lines of the reference.

    A small model sometimes loses the file; a conversation about a lost file would measure nothing. The rule picks
    contexts only: measured outputs have other seeds and none is left out for its text.

    Raises:
        RuntimeError: no seed gives such an answer.
    """
    for seed in SEEDS:
        done = engine.generate(list(prompt_ids), Sampling(seed=seed, max_tokens=ANSWER_TOKENS))
        assert isinstance(done, Completion)
        print(f"seed {seed}: {len(done.token_ids)} tokens, {done.finish_reason}, {kept(reference, done.text):.0%} kept")
        if done.finish_reason == "stop" and kept(reference, done.text) >= KEPT_LINES:
            return replace(turn, answer_ids=done.token_ids[:-1], answer_seed=seed)
    raise RuntimeError(f"No answer to '{turn.message}' ends within {ANSWER_TOKENS} tokens and keeps the file.")


def kept(reference: str, text: str) -> float:
    """Share of the reference's lines that the text has too; 1 without a reference."""
    lines = [line for line in reference.splitlines() if line.strip() and not line.startswith("```")]
    written = set(text.splitlines())
    return sum(line in written for line in lines) / len(lines) if lines else 1.0


if __name__ == "__main__":
    main(sys.argv[1:])
