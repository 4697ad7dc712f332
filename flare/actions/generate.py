"""`action=generate`: answer one prompt as it comes, or many as a batch."""

import json
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console

from flare.actions.prepare import running_engine
from flare.actions.prompts import Line, as_model_input, read_prompts
from flare.config.config import Config
from flare.errors import FlareError, RequestError
from flare.report.completion import closing_table, completion_json, source_text
from flare.runtime.engine import Engine
from flare.runtime.requests import Request
from flare.runtime.results import Completion


def run(config: Config, folder: Path) -> None:
    """Print completions as `output` says, and keep them as `completions.jsonl` in the run folder as they finish.

    Raises:
        RequestError: the lines that could not be answered, a sentence each, after all the others were.
    """
    lines = read_prompts(config)
    with running_engine(config) as engine, (folder / "completions.jsonl").open("w", encoding="utf-8") as file:
        if config.output == "rich" and len(lines) == 1 and (config.sampling.n or 1) == 1:
            _keep(_stream(engine, lines[0], config), file)
            return
        refused = _batch(engine, lines, config, file)
    if refused:
        raise RequestError("\n".join(refused))


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


def _batch(engine: Engine, lines: list[Line], config: Config, file: TextIO) -> list[str]:
    """All prompts together, shown in their order as they finish; what was refused, by line."""
    handles: list[tuple[Line, Request]] = []
    refused: list[str] = []
    for line in lines:
        try:
            prompt = as_model_input(line.prompt, engine.vocabulary, config.raw)
            handles += [(line, handle) for handle in engine.submit(prompt, line.sampling)]
        except FlareError as error:
            refused.append(line.blame(error))
    for number, (line, handle) in enumerate(handles, 1):
        try:
            completion = engine.wait([handle])[0]
        except RequestError as error:
            refused.append(line.blame(error))
            continue
        _show(completion, number, len(handles), config.output)
        _keep(completion, file)
    return refused


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


def _keep(completion: Completion, file: TextIO) -> None:
    file.write(json.dumps(completion_json(completion), ensure_ascii=False) + "\n")
    file.flush()
