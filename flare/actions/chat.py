"""`action=chat`: a conversation in turns, kept as messages."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from flare.actions.prepare import running_engine
from flare.config.config import Config
from flare.errors import RequestError
from flare.report.completion import source_text, turn_line
from flare.runtime.engine import Engine

HELP = "/new forgets the conversation, /quit or Ctrl-D ends it; Ctrl-C stops an answer."


def run(config: Config, folder: Path) -> None:
    """Read turns until the end of input; the conversation is kept as `messages.json` in the run folder."""
    console = Console(highlight=False)
    messages: list[dict[str, str]] = []
    with running_engine(config) as engine:
        console.print(f"[dim]{escape(engine.model_name)}. {HELP}[/dim]")
        while (typed := _read_turn(console)) is not None:
            if typed == "/new":
                messages.clear()
            elif typed == "/help":
                console.print(f"[dim]{HELP}[/dim]")
            elif typed:
                _answer(engine, console, messages, typed)
    (folder / "messages.json").write_text(json.dumps(messages, ensure_ascii=False, indent=1), encoding="utf-8")


def _read_turn(console: Console) -> str | None:
    try:
        typed = console.input("[bold]> [/bold]").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None
    return None if typed == "/quit" else typed


def _answer(engine: Engine, console: Console, messages: list[dict[str, str]], typed: str) -> None:
    """Stream one answer; one that is interrupted or refused leaves the conversation as far as it came."""
    messages.append({"role": "user", "content": typed})
    text = ""
    events = engine.stream(messages)
    try:
        for event in events:
            console.print(source_text(event), end="", soft_wrap=True)
            text += event.text
            if event.completion is not None:
                console.print()
                console.print(turn_line(event.completion))
    except KeyboardInterrupt:
        events.close()
        console.print("\n[dim]stopped[/dim]")
    except RequestError as error:
        messages.pop()
        console.print(str(error), markup=False)
        return
    messages.append({"role": "assistant", "content": text})
