"""A completion for people: tokens marked by source, the closing table, and the JSON object of `output=json`."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from flare.runtime.results import Completion, Counts, Event, Speculation

# Underlines tell copies from sampled tokens where colours cannot be seen.
STYLES = {
    "prefill": "",
    "target": "",
    "learned": "underline magenta",
    "history": "underline green",
    "context": "underline cyan",
    "forced": "underline yellow",
}


def source_text(event: Event) -> Text:
    """The event's text, each token's part in the style of its source."""
    text = Text()
    for part, source in zip(event.texts, event.sources, strict=False):
        text.append(part, STYLES[source])
    # rich drops control characters, so its own length would not do.
    text.append(event.text[sum(map(len, event.texts)) :])
    return text


def closing_table(completion: Completion) -> Table:
    """Rounds, offered and accepted drafts per source and depth, tokens per round and per second."""
    speculation, usage, timing = completion.speculation, completion.usage, completion.timing
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        "tokens",
        f"{usage.completion_tokens} after a prompt of {usage.prompt_tokens}; ended by {completion.finish_reason}",
    )
    table.add_row(
        "time", f"first token {timing.ttft_s:.2f} s, then {timing.decode_s:.2f} s: {timing.tokens_per_s:.1f} tokens/s"
    )
    table.add_row("rounds", _rounds(speculation))
    for source, counts in speculation.by_source.items():
        table.add_row(Text(f"{source} drafts", STYLES[source]), _share(counts))
    if speculation.by_depth:
        table.add_row("by depth", "  ".join(f"{row.accepted}/{row.offered}" for row in speculation.by_depth))
    if speculation.reason is not None:
        table.add_row("width one", speculation.reason)
    return table


def turn_line(completion: Completion) -> Text:
    """The closing table in one dim line, for chat."""
    speculation, timing = completion.speculation, completion.timing
    words = f"{completion.usage.completion_tokens} tokens, {timing.tokens_per_s:.1f} tokens/s"
    if speculation.offered:
        words += f", {speculation.accepted} of {speculation.offered} drafts accepted"
    return Text(words, "dim")


def completion_json(completion: Completion) -> dict[str, Any]:
    """The object of `output=json`; keys are those of DESIGN 12, then sources and, where asked for, logprobs."""
    document: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": asdict(completion.usage),
        "speculation": _speculation_json(completion.speculation),
        "timing": asdict(completion.timing),
        "sources": list(completion.sources),
    }
    if completion.logprobs is not None:
        document["logprobs"] = [entry._asdict() for entry in completion.logprobs]
    if completion.prompt_logprobs is not None:
        document["prompt_logprobs"] = [entry and entry._asdict() for entry in completion.prompt_logprobs]
    return document


def _speculation_json(speculation: Speculation) -> dict[str, Any]:
    return {
        "rounds": speculation.rounds,
        "offered": speculation.offered,
        "accepted": speculation.accepted,
        "emitted": speculation.emitted,
        "by_source": {source: counts._asdict() for source, counts in speculation.by_source.items()},
        "by_depth": [counts._asdict() for counts in speculation.by_depth],
        "widths": {str(width): rounds for width, rounds in speculation.widths.items()},
        "reason": speculation.reason,
    }


def _rounds(speculation: Speculation) -> str:
    per_round = speculation.emitted / speculation.rounds if speculation.rounds else 0.0
    widths = ", ".join(f"{rounds} of width {width}" for width, rounds in speculation.widths.items())
    return f"{speculation.rounds} ({widths or 'none'}); {per_round:.2f} tokens a round"


def _share(counts: Counts) -> str:
    return f"{counts.accepted} of {counts.offered} accepted"
