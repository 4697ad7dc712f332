"""Grammars through llguidance: JSON schemas, regular expressions and Lark grammars over a model's own tokens.

Three habits of the library are kept inside this file. An illegal token would spoil a matcher for good, so tokens are
validated first. It accepts end ids where a text is whole but does not count them, so it is never shown one. And what
is tried on drafts is tried on a copy, not rolled back.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flare.errors import RequestError
from flare.runtime.constraints.matcher import MaskRow
from flare.runtime.constraints.multiples import check_multiples
from flare.runtime.constraints.wishes import Wish

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT_GRAMMARS = 64  # compiled grammars an engine keeps for requests to come
REASON_CHARACTERS = 300  # most of the library's explanation that one sentence takes


class Spelling(Protocol):
    """What a grammar needs to know about a vocabulary."""

    @property
    def eos_ids(self) -> Sequence[int]:
        """Ids that end a response."""
        ...

    @property
    def tokenizer_json(self) -> str:
        """The whole tokenizer in the format of tokenizer.json."""
        ...


class Grammars:
    """Compiles constraints for one model and keeps the recent ones; any thread may ask.

    The library lets other threads run while it compiles. Whoever wants a grammar that is being compiled waits for it.
    """

    def __init__(self, vocabulary: Spelling, vocab: int) -> None:
        """Args: vocab: the model's own vocabulary size, which may exceed the tokenizer's."""
        self._vocabulary = vocabulary
        self._vocab = vocab
        self._loaded: LLTokenizer | None = None
        self._loading = Lock()
        self._tables = Lock()  # of the two tables below, never held while something is compiled
        self._kept: OrderedDict[Wish, GrammarMatcher] = OrderedDict()  # copied from, never moved
        self._turns: dict[Wish, Lock] = {}  # held by who compiles

    def load(self) -> None:
        """Load the library and its view of the vocabulary; the first grammar does so otherwise.

        Raises:
            RequestError: llguidance is not installed, or the vocabulary has no end-of-text token.
        """
        self._tokenizer()

    def compile(self, wish: Wish) -> None:
        """Have a grammar ready for `matcher`; raises like it."""
        self._compiled(wish)

    def matcher(self, wish: Wish) -> "GrammarMatcher":
        """A matcher before the first token, independent of every other.

        Raises:
            RequestError: the grammar is broken, uses what is not supported, or allows no text at all; or llguidance is
                not installed.
        """
        return self._compiled(wish).copy()

    def spelling(self, token: int) -> bytes:
        """The bytes of a token; control tokens by their name."""
        return self._tokenizer().decode_bytes([token])

    def _compiled(self, wish: Wish) -> "GrammarMatcher":
        """The kept matcher of a grammar."""
        with self._tables:
            if kept := self._recent(wish):
                return kept
            turn = self._turns.setdefault(wish, Lock())
        with turn:
            with self._tables:
                kept = self._recent(wish)
            return kept or self._compile_and_keep(wish)

    def _recent(self, wish: Wish) -> "GrammarMatcher | None":
        """A kept matcher, now the last to be dropped. Under `_tables`."""
        if wish in self._kept:
            self._kept.move_to_end(wish)
        return self._kept.get(wish)

    def _compile_and_keep(self, wish: Wish) -> "GrammarMatcher":
        """In this grammar's turn. A broken one is not remembered: who waited for it is told why by its own attempt."""
        try:
            compiled = self._compile(wish)
            with self._tables:
                self._kept[wish] = compiled
                while len(self._kept) > KEPT_GRAMMARS:
                    self._kept.popitem(last=False)
            return compiled
        finally:
            with self._tables:
                self._turns.pop(wish, None)

    def _compile(self, wish: Wish) -> "GrammarMatcher":
        tokenizer = self._tokenizer()
        check_multiples(wish)
        from llguidance import LLMatcher

        read = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "lark": LLMatcher.grammar_from_lark,
        }[wish.kind]
        try:
            inner = LLMatcher(tokenizer, read(wish.text), log_level=0)
        except ValueError as error:  # text that is no Unicode, for one
            raise RequestError(f"sampling.{wish.field} cannot be followed: {reason(str(error))}.") from error
        compiled = GrammarMatcher(inner, tuple(self._vocabulary.eos_ids))
        fault = compiled.fault
        if fault is None and not compiled.may_end and not compiled.goes_on:
            fault = compiled.fault or "it allows no text"
        if fault is not None:
            raise RequestError(f"sampling.{wish.field} cannot be followed: {fault}.")
        return compiled

    def _tokenizer(self) -> "LLTokenizer":
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer
        except ModuleNotFoundError as error:
            raise RequestError(
                "Constraints need llguidance, which is not installed: pip install 'flare[constraints]'."
            ) from error
        ends = list(self._vocabulary.eos_ids)
        if not ends:
            raise RequestError("Constraints need a model whose vocabulary has an end-of-text token.")
        return LLTokenizer(self._vocabulary.tokenizer_json, n_vocab=self._vocab, eos_token=ends)


class GrammarMatcher:
    """A `Matcher` of one compiled grammar."""

    def __init__(self, inner: "LLMatcher", eos_ids: tuple[int, ...]) -> None:
        self._inner = inner
        self._eos_ids = eos_ids

    @property
    def fault(self) -> str | None:
        return reason(self._inner.get_error()) if self._inner.is_error() else None

    @property
    def may_end(self) -> bool:
        return self._inner.is_accepting()

    @property
    def at_end(self) -> bool:
        if not self.may_end:
            return False
        return self._inner.is_stopped() or not self.goes_on

    @property
    def goes_on(self) -> bool:
        """Whether any text token may follow."""
        return bool(self._text_bits().any())

    def copy(self) -> "GrammarMatcher":
        return GrammarMatcher(self._inner.deep_copy(), self._eos_ids)

    def legal(self, tokens: Sequence[int]) -> int:
        text = list(tokens)
        end = next((index for index, token in enumerate(text) if token in self._eos_ids), len(text))
        return self._inner.validate_tokens(text[:end]) if end else 0

    def consume(self, tokens: Sequence[int]) -> None:
        if tokens:
            taken = self._inner.try_consume_tokens(list(tokens))
            assert taken == len(tokens) or self._inner.is_error(), "only tokens that `legal` accepted may be consumed"

    def forced(self) -> list[int]:
        return self._inner.compute_ff_tokens()

    def allow(self, row: MaskRow) -> None:
        row[:] = self._text_bits()[: row.size]

    def _text_bits(self) -> MaskRow:
        """The mask of the next token without end ids, which are allowed by the constraint's own rule."""
        bits = np.frombuffer(bytearray(self._inner.compute_bitmask()), np.uint32)
        for id in self._eos_ids:
            bits[id >> 5] &= ~np.uint32(1 << (id & 31))
        return bits.view(np.int32)


def reason(message: str) -> str:
    """The library's explanation as part of one sentence: its "error:" line if it has one, else its first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    text = (named or lines or ["it is not supported"])[0]
    return text.rstrip(".:")[:REASON_CHARACTERS]
