"""One report of everything in which a checkpoint differs from what a recipe declares."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flare.checkpoint.tensors import Damage, StoredTensor
from flare.errors import CheckpointError

LISTED: Final = 8


@dataclass(frozen=True)
class Expected:
    """What a stored tensor must be.

    Attributes:
        shape: torch's order.
        formats: allowed values of `StoredTensor.format`.
    """

    shape: tuple[int, ...]
    formats: Collection[str]


def check_headers(
    declared: Mapping[str, Expected], stored: Mapping[str, StoredTensor], origin: str, damaged: Sequence[Damage] = ()
) -> None:
    """Compare names, shapes and formats, before any data is read.

    Args:
        declared: by stored name.
        stored: the headers to check, without those the recipe ignores on purpose.
        origin: the file or folder, for the message.
        damaged: the checkpoint's files that could not be opened.

    Raises:
        CheckpointError: one message for all differences, the first few of each kind by name.
    """
    refuse(differences(declared, stored, damaged), origin)


def refuse(found: Sequence[str], origin: str) -> None:
    """End with one report, unless there is nothing to report.

    Raises:
        CheckpointError: anything was found.
    """
    if found:
        raise CheckpointError(f"{origin} is not the model that the recipe declares: {'; '.join(found)}.")


def differences(
    declared: Mapping[str, Expected], stored: Mapping[str, StoredTensor], damaged: Sequence[Damage] = ()
) -> list[str]:
    """One listing per kind of difference; tensors in damaged files are not listed a second time as missing."""
    lost = frozenset[str]().union(*(file.names for file in damaged))
    absent = [name for name in declared if name not in stored and name not in lost]
    extra = [f"{name} {list(tensor.shape)}" for name, tensor in stored.items() if name not in declared]
    both = [(declared[name], tensor) for name, tensor in stored.items() if name in declared]
    shaped = [
        f"{tensor.name} {list(tensor.shape)}, declared {list(expected.shape)}"
        for expected, tensor in both
        if tensor.shape != expected.shape
    ]
    formatted = [
        f"{tensor.name} ({tensor.format})" for expected, tensor in both if tensor.format not in expected.formats
    ]
    found = [
        listing("damaged", [file.cause for file in damaged]),
        listing("missing", [f"{name} {list(declared[name].shape)}" for name in absent]),
        listing("not declared", extra),
        listing("of another shape", shaped),
        listing("in a format that cannot be read", formatted),
    ]
    return [difference for difference in found if difference]


def listing(kind: str, names: list[str]) -> str:
    """'3 missing: a, b, c', at most LISTED names; empty without any."""
    if not names:
        return ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{len(names)} {kind}: {', '.join(names[:LISTED])}{more}"
