"""Teacher-forced full-vocabulary diagnostics: `python -m flare.bench.diagnostics RECIPE [key=value …] --against WORDS`.

A core reads a text through its target's own prefill, and the logits of every position are held against a reference:
the same recipe under other overrides (`--against "preparation.dtype=float32"`), or logits on file (`--golden FILE`).

Shapes: T positions, V vocabulary.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flare.bench.machine import circumstances
from flare.build import Core, prepare
from flare.contract.vocabulary import Vocabulary
from flare.errors import CheckpointError, ConfigError, FlareError, RequestError
from flare.layers.rows import PageTables, causal_rows

TOP = 10
BLOCK_ROWS = 32  # positions compared at a time: a float64 copy of all T × V logits would cost more than the model
MISTAKE = 2
PASSAGE = (
    "The lamps along the quay were lit at six. By then 14 boats had come in, and the harbour master wrote down each "
    "name, its catch and the price per box.\n\n"
    "def total(boxes, price):\n    return sum(boxes) * price  # in cents\n\n"
    'She asked: "Wer zahlt das?" — nobody answered, so she closed the book and went home through the rain.\n'
)


@dataclass(frozen=True)
class Comparison:
    """How far the logits of one sequence are from their reference.

    Attributes:
        positions: compared positions T.
        relative_l2: norm of the difference of all T × V logits over the norm of the reference's.
        top10_overlap: mean share of the reference's ten largest logits that are among the actual ten.
        kl_mean, kl_max: KL(reference || actual) over positions, nats. Computed in float32, so that values below about
            1e-6 are rounding.
        argmax_agreement: share of positions with the same largest logit.
    """

    positions: int
    relative_l2: float
    top10_overlap: float
    kl_mean: float
    kl_max: float
    argmax_agreement: float


@dataclass(frozen=True)
class Sequenced:
    """A token sequence with the positions to compare (None: all of them) and, if on file, their logits."""

    name: str
    ids: list[int]
    positions: Tensor | None = None
    logits: Tensor | None = None


def compare(reference: Tensor, actual: Tensor) -> Comparison:
    """Hold logits [T, V] against their reference [T, V]; of equal logits the smaller id comes first.

    Raises:
        RequestError: no positions, shapes that differ, a logit that is not finite, or a reference of zeros only.
    """
    _check_logits(reference, actual)
    squares, reference_squares, overlap, agreement = 0.0, 0.0, 0.0, 0.0
    divergences = []
    for wanted, found in zip(reference.split(BLOCK_ROWS), actual.split(BLOCK_ROWS), strict=True):
        squares += float((found.double() - wanted.double()).square().sum())
        reference_squares += float(wanted.double().square().sum())
        overlap += float(_overlaps(wanted, found, TOP).sum())
        agreement += float(_overlaps(wanted, found, 1).sum())
        divergences.append(_divergences(wanted, found))
    if not reference_squares:
        raise RequestError("The reference logits are all zero, so a relative difference has no denominator.")
    positions, divergence = len(reference), torch.cat(divergences)
    return Comparison(
        positions=positions,
        relative_l2=(squares / reference_squares) ** 0.5,
        top10_overlap=overlap / positions,
        kl_mean=float(divergence.mean()),
        kl_max=float(divergence.max()),
        argmax_agreement=agreement / positions,
    )


def teacher_forced_logits(core: Core, ids: Sequence[int] | Tensor, *, chunk_tokens: int | None = None) -> Tensor:
    """Logits [T, V] of every position of one sequence, in the core's dtype.

    Runs in slot 0 with the first pages and overwrites both: no engine may be using the core.

    Args:
        ids: T token ids.
        chunk_tokens: prompt tokens per prefill; by default, and at most, the core's largest prefill capacity.

    Raises:
        RequestError: no ids, more than the context holds, or an id outside the vocabulary.
    """
    extent, target = core.model.extent, core.model.target
    device = core.model.logits.device
    tokens = torch.as_tensor(ids, dtype=torch.int64, device=device)
    _check_ids(tokens, core)
    chunk = min(chunk_tokens or extent.chunk, extent.chunk)
    table = torch.arange(extent.pages_per_request, dtype=torch.int32, device=device)[None]
    pages, slot = PageTables(table, extent.null_page, extent.context), tokens.new_zeros(1)

    def run() -> Tensor:
        logits, consumed = [], slot
        with torch.inference_mode():
            for piece in tokens.split(chunk):
                counts = slot + len(piece)
                rows = causal_rows(piece[None], counts, consumed, slot, pages)
                logits.append(target.head(target.prefill(rows).output).cpu())
                consumed = consumed + counts
        return torch.cat(logits)

    # torch keeps its thread count per calling thread; the caller's own stays as it is.
    threads = core.plan.threads or torch.get_num_threads()
    with ThreadPoolExecutor(1, "flare-diagnostics", torch.set_num_threads, (threads,)) as worker:
        return worker.submit(run).result()


def golden_sequences(file: Path) -> list[Sequenced]:
    """The sequences of a safetensors file: `NAME.ids` [T], `NAME.positions` [P] and `NAME.logits` [P, V].

    Raises:
        CheckpointError: a file that cannot be read, without sequences, or with one whose tensors do not fit.
    """
    try:
        with safe_open(file, "pt") as stored:
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118  safe_open is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"--golden {file} cannot be read as safetensors: {error}.") from error
    names = sorted(key.removesuffix(".ids") for key in tensors if key.endswith(".ids"))
    if not names:
        raise CheckpointError(f"--golden {file} holds no sequence; each is NAME.ids, NAME.positions and NAME.logits.")
    return [_golden_sequence(name, tensors, file) for name in names]


def diagnose(recipe: str, overrides: Sequence[str], chosen: argparse.Namespace) -> dict[str, Any]:
    """What the entry point reports: circumstances, and one row per sequence and reference."""
    sequences = golden_sequences(chosen.golden) if chosen.golden is not None else []
    with prepare(recipe, overrides, config_dir=chosen.config_dir) as core:
        document = circumstances(core) | {
            "command": shlex.join(["python", "-m", "flare.bench.diagnostics", *chosen.words]),
            "overrides": list(overrides),
        }
        if chosen.text is not None or not sequences:
            sequences.append(_text_sequence(chosen.text, core.vocabulary))
        actual = [_selected(core, sequence) for sequence in sequences]
    pairs = list(zip(sequences, actual, strict=True))
    on_file = "" if chosen.golden is None else chosen.golden.name
    rows = [_row(one, on_file, one.logits, found) for one, found in pairs if one.logits is not None]
    for words in chosen.against:
        # Each core is closed before the next is prepared: two need not fit into memory together.
        with prepare(recipe, [*overrides, *_split(words)], config_dir=chosen.config_dir) as other:
            rows += [_row(sequence, words, _selected(other, sequence), found) for sequence, found in pairs]
    return document | {"comparisons": rows}


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """The rows of a report, drawn: a table for each reference, under its name."""
    judged = " ".join([document["recipe"], *document["overrides"]])
    for reference, rows in groupby(document["comparisons"], itemgetter("reference")):
        table = Table(title=f"{judged}\nagainst {reference}", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("sequence", overflow="fold")
        for column in ("T", "relative L2", "top-10", "KL mean", "KL max", "argmax"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(
                row["sequence"],
                str(row["positions"]),
                f"{row['relative_l2']:.2e}",
                f"{row['top10_overlap']:.1%}",
                f"{row['kl_mean']:.2e}",
                f"{row['kl_max']:.2e}",
                f"{row['argmax_agreement']:.1%}",
            )
        yield table


def main(words: Sequence[str]) -> int:
    """Run one command line and return its exit status: 2 after a mistake, which is one sentence."""
    chosen = _parser().parse_intermixed_args(words)
    chosen.words = words
    try:
        if chosen.golden is None and not chosen.against:
            raise ConfigError('Name a reference: --against "preparation.dtype=float32", --golden FILE, or both.')
        document = diagnose(chosen.recipe, chosen.overrides, chosen)
        Console(markup=False).print(*tables(document))
        if chosen.json is not None:
            _write(chosen.json, document)
    except FlareError as error:
        print(error, file=sys.stderr)
        return MISTAKE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m flare.bench.diagnostics", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("recipe", help="a name that flare --help lists")
    parser.add_argument("overrides", nargs="*", help="key=value, of the core to judge and of its references")
    parser.add_argument("--against", action="append", default=[], help="further overrides that make a reference core")
    parser.add_argument("--golden", type=Path, help="safetensors file with NAME.ids, NAME.positions, NAME.logits")
    parser.add_argument("--text", type=Path, help="UTF-8 text to read; without it and --golden, a passage of our own")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--config-dir", type=Path, help="a folder with further recipes")
    return parser


def _check_logits(reference: Tensor, actual: Tensor) -> None:
    if reference.ndim != 2 or reference.shape != actual.shape or not reference.numel():
        raise RequestError(
            f"Logits of shape {list(actual.shape)} cannot be held against a reference of shape "
            f"{list(reference.shape)}; both must be [positions, vocabulary]."
        )
    for name, logits in (("reference", reference), ("actual", actual)):
        finite = logits.isfinite().all(1)
        if not finite.all():
            row = int(finite.int().argmin())
            raise RequestError(f"The {name} logits are not finite at compared position {row}.")


def _check_ids(tokens: Tensor, core: Core) -> None:
    context, vocab = core.model.extent.context, core.model.target.vocab
    if not 1 <= len(tokens) <= context:
        raise RequestError(
            f"The sequence has {len(tokens)} tokens, but this core takes 1 to {context} (preparation.context_length)."
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab:
        wrong = int(tokens[(tokens < 0) | (tokens >= vocab)][0])
        raise RequestError(f"Token id {wrong} is outside the vocabulary of {core.recipe}: 0 to {vocab - 1}.")


def _overlaps(reference: Tensor, actual: Tensor, count: int) -> Tensor:
    """Per row, the share of the reference's `count` largest that are among the actual `count` largest [T]."""
    count = min(count, reference.shape[1])
    return (_largest(reference, count) & _largest(actual, count)).sum(1).double() / count


def _largest(logits: Tensor, count: int) -> Tensor:
    """[T, V] bool with exactly `count` True per row; rounded logits tie often, and the smaller id wins."""
    least = logits.topk(count, 1).values[:, -1:]
    above, equal = logits > least, logits == least
    return above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))


def _divergences(reference: Tensor, actual: Tensor) -> Tensor:
    """KL(reference || actual) per row, float32 [T]; rounding may not make it negative."""
    wanted, found = reference.float().log_softmax(1), actual.float().log_softmax(1)
    return (wanted.exp() * (wanted - found)).sum(1).clamp_min(0)


def _golden_sequence(name: str, tensors: Mapping[str, Tensor], file: Path) -> Sequenced:
    for part in ("positions", "logits"):
        if f"{name}.{part}" not in tensors:
            raise CheckpointError(f"--golden {file} holds {name}.ids but no {name}.{part}.")
    ids, positions, logits = (tensors[f"{name}.{part}"] for part in ("ids", "positions", "logits"))
    shaped = ids.ndim == positions.ndim == 1 and logits.ndim == 2 and len(positions) == len(logits) > 0
    if not shaped or not bool(((positions >= 0) & (positions < len(ids))).all()):
        raise CheckpointError(
            f"--golden {file}: {name}.ids {list(ids.shape)}, {name}.positions {list(positions.shape)} and "
            f"{name}.logits {list(logits.shape)} must be [T], [P] and [P, V], with positions below T."
        )
    return Sequenced(name, ids.tolist(), positions.long(), logits)


def _text_sequence(file: Path | None, vocabulary: Vocabulary) -> Sequenced:
    if file is None:
        return Sequenced("passage", vocabulary.encode(PASSAGE))
    try:
        return Sequenced(file.name, vocabulary.encode(file.read_text(encoding="utf-8-sig")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {file} cannot be read: {error}") from error


def _selected(core: Core, sequence: Sequenced) -> Tensor:
    logits = teacher_forced_logits(core, sequence.ids)
    return logits if sequence.positions is None else logits[sequence.positions]


def _row(sequence: Sequenced, reference: str, wanted: Tensor, found: Tensor) -> dict[str, Any]:
    return {"sequence": sequence.name, "reference": reference, **asdict(compare(wanted, found))}


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        raise ConfigError(f"--against {words} cannot be split into key=value words: {error}.") from error


def _write(file: Path, document: Mapping[str, Any]) -> None:
    try:
        file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {file} cannot be written: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
