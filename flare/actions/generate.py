"""`action=generate`: answer one prompt as it comes, or many as a batch."""

import json
import sys
from pathlib import Path

from rich.console import Console

from flare.actions.prepare import running_engine
from flare.actions.prompts import Line, as_model_input, read_prompts
from flare.config.config import Config
from flare.report.completion import closing_table, completion_json, source_text
from flare.runtime.engine import Engine
from flare.runtime.results import Completion


def run(config: Config, folder: Path) -> None:
    """Print completions as `output` says, and keep them as `completions.jsonl` in the run folder."""
    lines = read_prompts(config)
    with running_engine(config) as engine:
        if config.output == "rich" and len(lines) == 1 and (config.sampling.n or 1) == 1:
            done = [_stream(engine, lines[0], config)]
        else:
            done = _batch(engine, lines, config)
    _keep(done, folder)


def _stream(engine: Engine, line: Line, config: Config) -> Completion:
    """Show tokens as they come, marked by source, then the closing table."""
    console = Console(highlight=False)
    completion = None
    for event in engine.stream(as_model_input(line.prompt, engine.vocabulary, config.raw), line.sampling):
        console.print(source_text(event), end="", soft_wrap=True)
        completion = event.completion or completion
    assert completion is not None
    console.print("\n")
    console.print(closing_table(completion))
    return completion


def _batch(engine: Engine, lines: list[Line], config: Config) -> list[Completion]:
    """All prompts together; each line's own sampling wishes hold for it."""
    handles = [
        handle
        for line in lines
        for handle in engine.submit(as_model_input(line.prompt, engine.vocabulary, config.raw), line.sampling)
    ]
    done = engine.wait(handles)
    for number, completion in enumerate(done, 1):
        _show(completion, number, len(done), config.output)
    return done


def _show(completion: Completion, number: int, total: int, output: str) -> None:
    if output == "json":
        print(json.dumps(completion_json(completion), ensure_ascii=False))
    elif output == "text":
        print(completion.text)
    else:
        console = Console(highlight=False)
        console.rule(f"{number} of {total}", align="left")
        console.print(completion.text, markup=False, soft_wrap=True)
        console.print(closing_table(completion))
    sys.stdout.flush()


def _keep(done: list[Completion], folder: Path) -> None:
    with (folder / "completions.jsonl").open("w", encoding="utf-8") as file:
        for completion in done:
            file.write(json.dumps(completion_json(completion), ensure_ascii=False) + "\n")
