"""One benchmark run: the parts that `workload.parts` names, over one core, each with all its samples."""

from collections.abc import Callable, Iterator
from typing import Any

from flare.bench.arms import Arm, Bench, own_arm, plain_arm, serving, table_arms
from flare.bench.entries import Entry, read_entries
from flare.bench.paired import GREEDY, RECIPE, Note, Observation, Session, measure
from flare.bench.replay import Work, overhead
from flare.bench.rounds import round_costs
from flare.bench.stages import stage_split
from flare.bench.summary import acceptance, ratio_rows, width_costs
from flare.bench.versus import versus
from flare.build import Core
from flare.config.config import Config

VERSUS_PLAIN = ("chat", "reasoning")
TRACE_TOKENS = 128


def run_parts(core: Core, config: Config, own: bool, note: Note) -> Iterator[tuple[str, Any]]:
    """(name, data) of each part as it is done.

    Args:
        core: prepared with the whole catalog of `config`.
        own: measure only what `serving.*` says, and only as an arm: a point of a sweep.
        note: told what is being measured.
    """
    bench = Bench(core)
    for part in ("arms",) if own else config.workload.parts:
        note(f"measuring {part}")
        yield part, PARTS[part](bench, config, own, note)


def arms_part(bench: Bench, config: Config, own: bool, note: Note) -> dict[str, Any]:
    """Every arm against plain decoding."""
    asked = config.workload
    arms = [own_arm(config)] if own else list(table_arms(config))
    entries = read_entries(asked.categories, asked.entries)
    observations: list[Observation] = []
    # At temperature 0 a repeat would answer with the same tokens: once is enough.
    for setting, repeats in ((RECIPE, asked.repeats), (GREEDY, 1 if asked.greedy else 0)):
        session = Session(bench, plain_arm(config), arms, entries, [setting], repeats, asked.budget_tokens)
        observations += measure(session, note) if repeats else []
    return {
        "rows": [row.to_json() for row in ratio_rows(observations)],
        "acceptance": acceptance(observations),
        "width_costs": width_costs(observations),
        "observations": [observation.to_json() for observation in observations],
    }


def stages_part(bench: Bench, config: Config, _own: bool, _note: Note) -> list[dict[str, Any]]:
    """Stages of plain and of wide rounds, on a later turn of code editing."""
    entry = editing(1)[0]
    tokens = capped(config, TRACE_TOKENS)
    turn = entry.turns[1]
    return [
        row
        for arm in (plain_arm(config), widest_arm(config))
        for row in stage_split(bench, arm, turn.prompt_ids, entry.remembered(1), tokens)
    ]


def rounds_part(bench: Bench, config: Config, _own: bool, _note: Note) -> list[dict[str, Any]]:
    """Round costs on a long text of the workload."""
    text = read_entries(["long_context"], 1)[0].turns[0].prompt_ids
    return round_costs(bench.core, text, config.workload.contexts, config.workload.rounds)


def overhead_part(bench: Bench, config: Config, _own: bool, _note: Note) -> list[dict[str, Any]]:
    """The engine against a bare replay: ordinary decoding, and wide rounds with copies."""
    entry, pairs = editing(1)[0], config.workload.pairs
    turn = entry.turns[1]
    tokens = capped(config, TRACE_TOKENS)
    works = [Work(arm, turn.prompt_ids, entry.remembered(1), tokens) for arm in (plain_arm(config), widest_arm(config))]
    return [overhead(bench, work, pairs) for work in works]


def versus_part(bench: Bench, config: Config, _own: bool, _note: Note) -> dict[str, Any]:
    """Other engines on the same weights."""
    plain = read_entries(VERSUS_PLAIN, 1)
    return versus(bench, plain, editing(config.workload.entries), capped(config, 256), config.workload.pairs)


def widest_arm(config: Config) -> Arm:
    """The widest round with both kinds of copies: its widths do not depend on timings."""
    widest = max(config.widths())
    return Arm(
        f"width {widest}, history and context",
        str(widest),
        "both",
        serving(
            config,
            fixed_width=widest if widest > 1 else None,
            mtp_draft_tokens=widest - 1,
            history_drafts=True,
            context_drafts=True,
        ),
    )


def editing(limit: int | None) -> list[Entry]:
    """Multi-turn code editing, the work that copies can help with."""
    return read_entries(["code_editing"], limit)


def capped(config: Config, tokens: int) -> int:
    """A part's own budget within the workload's."""
    return min(tokens, config.workload.budget_tokens or tokens)


def settings_of(config: Config) -> dict[str, Any]:
    """The configuration that explains a result."""
    return {name: getattr(config, name).model_dump(mode="json") for name in ("workload", "serving", "sampling")}


Part = Callable[[Bench, Config, bool, Note], Any]
PARTS: dict[str, Part] = {
    "arms": arms_part,
    "stages": stages_part,
    "rounds": rounds_part,
    "overhead": overhead_part,
    "versus": versus_part,
}
