"""What every checkpoint offers, whatever its file format: headers, tensors, facts, a vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

from torch import Tensor

from flare.contract.vocabulary import Vocabulary

Layout = Literal["gguf", "huggingface"]

FLOAT_FORMATS = frozenset({"float64", "float32", "float16", "bfloat16"})


@dataclass(frozen=True)
class StoredTensor:
    """One entry of a checkpoint's header.

    Attributes:
        shape: in torch's order, outermost first; of values, not of the blocks a quantised format packs them in.
        format: a torch dtype name, or the lower-case GGML name of a quantised type ("q4_1").
        bytes: size in the file.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    bytes: int

    @property
    def values(self) -> int:
        """Number of values."""
        return prod(self.shape)


@dataclass(frozen=True)
class Damage:
    """A weight file, one of several, that cannot be opened.

    Attributes:
        cause: the file and what is wrong with it.
        names: the tensors that the checkpoint's index places in it.
    """

    cause: str
    names: frozenset[str]


class Checkpoint(Protocol):
    """An opened checkpoint: its headers are read, its tensors are not.

    Attributes:
        origin: the file or folder, for messages.
        damaged: files that could not be opened; their tensors are not among the headers.
        layout: whose tensor names and configuration keys it uses.
        config: facts about the architecture under the keys they are stored by.
    """

    @property
    def origin(self) -> str: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def headers(self) -> Mapping[str, StoredTensor]: ...

    @property
    def damaged(self) -> Sequence[Damage]: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    def read(self, name: str) -> Tensor:
        """The tensor in its stored dtype, or float32 where it is quantised; memory of the caller's own.

        Raises:
            CheckpointError: no such tensor, or a quantised type that nothing here can expand.
        """
        ...

    def vocabulary(self) -> Vocabulary:
        """The tokenizer that belongs to these weights.

        Raises:
            CheckpointError: it is missing, or of a kind that cannot be built exactly.
        """
        ...
