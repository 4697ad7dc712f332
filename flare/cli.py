"""argv → validated config → action; a user's mistake becomes one sentence and status 2.

Hydra runs the job, so sweeps (`-m`), launchers and run folders are Hydra's. Everything typed is checked before: each
key against the schema, each point of a sweep composed and validated before the first runs. A bug keeps its traceback.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from flare.errors import ConfigError, FlareError

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Action(NamedTuple):
    """What a user can ask for: `run(config: Config, folder: Path) -> None`, imported only when chosen."""

    function: str  # "package.module:function"
    summary: str


ACTIONS = {
    "generate": Action("flare.actions.generate:run", "answer prompt=…, or each line of prompts=… together"),
    "chat": Action("flare.actions.chat:run", "talk in turns"),
    "serve": Action("flare.actions.serve:run", "answer OpenAI clients over HTTP"),
    "plan": Action("flare.actions.plan:run", "print graphs and memory; needs no weights"),
    "bench": Action("flare.actions.bench:run", "measure against plain decoding"),
    "synthesize": Action("flare.actions.synthesize:run", "write seeded weights in the recipe's own repository layout"),
}
MISTAKE, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except FlareError as error:
        print(error, file=sys.stderr)
        return MISTAKE
    except (KeyboardInterrupt, BrokenPipeError) as error:
        return _stopped(error)
    return status


def _stopped(error: BaseException) -> int:
    """Status of a run that Ctrl-C or a reader's leaving ended; both are quiet."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # Python flushes standard output once more on exit; what is left to write has no reader.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _run(argv: list[str]) -> int:
    if "--version" in argv:
        print(f"flare {version('flare')}")
        return 0
    if "--help" in argv or "-h" in argv:
        print(_help(argv))
        return 0
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a recipe's module may lie in the current folder
    return _hydra(_checked(argv))


def _help(argv: list[str]) -> str:
    # Imported here, like Hydra below: each way through this file pays for what it uses.
    from flare.config.help import help_text
    from flare.config.library import Library

    return help_text(Library.beside(_config_dir(argv)), {name: action.summary for name, action in ACTIONS.items()})


def _config_dir(argv: list[str]) -> str | None:
    """What follows --config-dir, for the help that does without Hydra's parser."""
    for word, following in zip(argv, [*argv[1:], None], strict=True):
        if word in ("--config-dir", "-cd"):
            return following
        if word.startswith("--config-dir="):
            return word.partition("=")[2]
    return None


def _checked(argv: list[str]) -> list[str]:
    """Hydra's command line, with overrides that are known to compose and validate."""
    from hydra._internal.utils import get_args_parser

    from flare.config.compose import compose_points, no_recipe
    from flare.config.library import Library
    from flare.config.overrides import check

    parser = get_args_parser()
    parser.error = _refuse_flag
    typed, unknown = parser.parse_known_intermixed_args(argv)
    for flag in (word for word in unknown if word.startswith("-")):
        _refuse_flag(f"Unknown flag {flag}")
    if typed.hydra_help or typed.shell_completion:
        return argv
    library = Library.beside(typed.config_dir)
    checked = check(typed.overrides, library, sweep=typed.multirun)
    if not any(word.startswith("+recipe=") for word in checked.words):
        raise ConfigError(no_recipe(library))
    compose_points(checked.points, library)
    flags = [word for word in argv if word not in typed.overrides]
    return [*checked.words, *flags]


def _refuse_flag(message: str) -> NoReturn:
    raise ConfigError(f"{message}; flare --help lists the flags")


def _hydra(argv: list[str]) -> int:
    """Let Hydra run the job or jobs; its errors are raised, not printed. Returns the exit status."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from flare.config.compose import sentence_of
    from flare.config.library import HOME

    mistakes: list[FlareError] = []
    sweeps: list[Path] = []

    def attempt(tree: "DictConfig") -> None:
        """One job, whose failure is told at once and does not keep a sweep's other points from running."""
        sweeps[:] = _sweep_folders()
        try:
            _job(tree)
        except FlareError as error:
            print(error, file=sys.stderr)
            mistakes.append(error)
        except BrokenPipeError as error:
            raise SystemExit(_stopped(error)) from error  # Hydra would print every other exception of a job

    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR", "0")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["flare", *argv], "1"
    try:
        hydra.main(config_path=str(HOME), config_name="config", version_base="1.3")(attempt)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(sentence_of(error)) from error
    finally:
        sys.argv, os.environ["HYDRA_FULL_ERROR"] = before
    for folder in sweeps:
        from flare.actions.compare import after_sweep

        after_sweep(folder)
    return MISTAKE if mistakes else 0


def _sweep_folders() -> list[Path]:
    """The folder that holds all points of the sweep this job belongs to; none for a single run."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    about: Any = HydraConfig.get()
    return [Path(about.runtime.cwd) / about.sweep.dir] if about.mode == RunMode.MULTIRUN else []


def _job(tree: "DictConfig") -> None:
    """One run, in its own folder: validate what Hydra composed, then act."""
    from hydra.core.hydra_config import HydraConfig

    from flare.config.compose import validated

    about: Any = HydraConfig.get()
    config = validated(tree, about)
    module, _, function = ACTIONS[config.action].function.partition(":")
    getattr(import_module(module), function)(config, Path(about.runtime.output_dir))
