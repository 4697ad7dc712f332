"""A vocabulary of bytes and a few longer tokens for tests of constraints, and short ways to build and read them."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from flare.runtime.constraints import Constraint, Grammars
from flare.runtime.constraints.wishes import Wish, grammar_text

END, OTHER_END, THINK = 256, 257, 258
VOCAB = 300
WORDS = (VOCAB + 31) // 32


def byte_tokenizer() -> Tokenizer:
    """Token b is byte b; 256, 257 and 258 are control tokens."""
    stands_for = {spelled: byte for byte in range(256) for spelled in [_printable(byte)]}
    built = Tokenizer(models.BPE(stands_for, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    names = ("<|end|>", "<|other_end|>", "</think>")
    built.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return built


def _printable(byte: int) -> str:
    """GPT-2's stand-in for a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in plain else chr(256 + [b for b in range(256) if b not in plain].index(byte))


def grammars(eos_ids: Sequence[int] = (END, OTHER_END)) -> Grammars:
    return Grammars(SimpleNamespace(eos_ids=eos_ids, tokenizer_json=byte_tokenizer().to_str()), VOCAB)


SHARED = grammars()


def wish(**fields: object) -> Wish:
    unset = {"grammar": None, "json_schema": None, "json_object": None, "regex": None}
    found = grammar_text(SimpleNamespace(**{**unset, **fields}))
    assert found is not None
    return found


def constraint(ends: Sequence[int] = (END, OTHER_END), min_tokens: int = 0, **fields: object) -> Constraint:
    return Constraint(SHARED.matcher(wish(**fields)), ends, min_tokens)


def masks(following: Constraint, drafts: Sequence[int] = ()) -> list[set[int]]:
    """The allowed ids of every row; all of them for an open row."""
    rows = np.full((len(drafts) + 1, WORDS), 0x5A5A5A5A, np.int32)
    following.mask(rows, drafts)
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")[:, :VOCAB]
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def ids(text: str) -> set[int]:
    return set(text.encode())


DIGITS = ids("0123456789")
EVERYTHING = set(range(VOCAB))
