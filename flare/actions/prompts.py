"""Prompts of one run: from the command line, from standard input, or from a JSON-lines file."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flare.config.config import Config
from flare.contract.vocabulary import Vocabulary
from flare.errors import ConfigError, FlareError, RequestError
from flare.runtime.sampling import Sampling

Prompt = str | list[int] | list[dict[str, str]]
LINE_KEYS = ("prompt", "messages", "token_ids", "sampling")


@dataclass(frozen=True)
class Line:
    """One prompt with the sampling wishes of its own line."""

    prompt: Prompt
    sampling: Sampling
    where: str = ""  # file and line, for messages

    def blame(self, error: FlareError) -> str:
        """The sentence, and which line it is about."""
        return f"{self.where}: {error}" if self.where else str(error)


def read_prompts(config: Config) -> list[Line]:
    """What `prompt` or `prompts` says, in order.

    Raises:
        ConfigError: neither is given, a file that cannot be read, or a line that is no prompt (by its number).
    """
    if config.prompts is not None:
        return _read_file(Path(config.prompts))
    if config.prompt is None:
        raise ConfigError('Nothing to answer: add prompt="…", prompt=- for standard input, or prompts=FILE.jsonl.')
    text = sys.stdin.read() if config.prompt == "-" else config.prompt
    if not text:
        raise ConfigError("The prompt is empty: write at least one character.")
    return [Line(text, Sampling())]


def as_model_input(prompt: Prompt, vocabulary: Vocabulary, raw: bool) -> Prompt:
    """Text becomes one user's turn where the model can chat, unless `raw`; everything else stays as it is."""
    if isinstance(prompt, str) and vocabulary.chat_template is not None and not raw:
        return [{"role": "user", "content": prompt}]
    return prompt


def _read_file(path: Path) -> list[Line]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts={path} cannot be read: {error}") from error
    # Not splitlines: a JSON text may hold other line separators.
    lines = [_parse(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"prompts={path} holds no line; each line is a JSON string or an object with {LINE_KEYS[0]}.")
    return lines


def _parse(path: Path, number: int, line: str) -> Line:
    where = f"prompts={path}, line {number}"
    try:
        document: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error.msg} at column {error.colno}.") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets without end
        raise ConfigError(f"{where} cannot be read: {error}.") from error
    if isinstance(document, str):
        document = {"prompt": document}
    if not isinstance(document, dict) or unknown(document):
        raise ConfigError(
            f"{where} must be a string or an object with one of {', '.join(LINE_KEYS[:3])}, and sampling."
        )
    given = [document[key] for key in LINE_KEYS[:3] if key in document]
    if len(given) != 1 or not isinstance(given[0], str if "prompt" in document else list) or not given[0]:
        raise ConfigError(
            f"{where} needs exactly one of prompt (text), messages and token_ids (lists), and it may not be empty."
        )
    wishes = document.get("sampling", {})
    known = Sampling.__dataclass_fields__
    if not isinstance(wishes, dict) or any(key not in known for key in wishes):
        raise ConfigError(f"{where}: sampling takes {', '.join(known)}.")
    try:
        return Line(given[0], Sampling(**wishes), where)
    except RequestError as error:
        raise ConfigError(f"{where}: {error}") from error


def unknown(document: dict[str, Any]) -> Sequence[str]:
    """Keys that mean nothing in a line."""
    return [key for key in document if key not in LINE_KEYS]
