"""A constraint: one request's committed matcher, and the rules that tie it to the rounds.

A round under a constraint carries drafts the host knows. Each of its rows gets the mask of the state after the drafts
before it, taken from a copy of the matcher; the matcher itself moves only over emitted tokens, at settle.

Ids that end the request are allowed exactly where the text is whole. A row after the end of the text, where no end id
can be drawn (none is left, or `min_tokens` forbids it), stays open: what is drawn there is dropped at settle, and the
request ends.
"""

from collections.abc import Sequence

import numpy as np

from flare.runtime.constraints.matcher import MaskRow, Matcher


class Constraint:
    """What one request's output must follow.

    Attributes:
        finished: the text came to its end and no end id can be drawn, so the host ends the request.
        fault: why the request failed, as part of a sentence; else None.
        copied_drafts: how many of the drafts last returned were copied; the others are forced.
    """

    def __init__(self, matcher: Matcher, ends: Sequence[int], min_tokens: int = 0) -> None:
        """Args: ends: ids that end the request on the device; min_tokens: tokens before which they are impossible."""
        self.finished = False
        self.fault: str | None = None
        self.copied_drafts = 0
        self._matcher = matcher
        self._ends = tuple(ends)
        self._min_tokens = min_tokens
        self._generated = 0
        self._faulty_row: tuple[int, str] | None = None  # of the last masks written

    @property
    def generated_tokens(self) -> int:
        """Tokens committed, the one that ended the request included."""
        return self._generated

    def drafts(self, copied: Sequence[int], limit: int) -> list[int]:
        """At most `limit` drafts for the next round: the legal head of a copy, then the tokens that must follow it."""
        cursor, copied = self._matcher.copy(), copied[:limit]
        text = self._text(copied)
        taken = list(text[: cursor.legal(text)])
        cursor.consume(taken)
        self.copied_drafts = copies = len(taken)
        if copies == len(text) < len(copied) and cursor.may_end and self._can_end(copies):
            self.copied_drafts += 1
            return [*taken, copied[copies]]
        if copies < limit:
            forced = self._text(cursor.forced())[: limit - copies]
            cursor.consume(forced)
            taken += forced
        if len(taken) < limit and self._can_end(len(taken)) and cursor.at_end:
            taken.append(self._ends[0])
        return taken

    def mask(self, rows: MaskRow, drafts: Sequence[int] = ()) -> None:
        """Write the mask of the row after the committed tokens, then of the row after each draft.

        Args:
            rows: [1 + len(drafts) or more, words] int32; further rows are left alone.
            drafts: what `drafts` returned, or a head of it.
        """
        cursor = self._matcher.copy()
        self._faulty_row = None
        for index in range(len(drafts) + 1):
            self._mask_row(cursor, index, rows[index])
            if index == len(drafts):
                return
            if drafts[index] in self._ends:
                rows[index + 1 : len(drafts) + 1] = -1  # nothing follows an accepted end
                return
            cursor.consume(drafts[index : index + 1])

    def commit(self, tokens: Sequence[int], ended: bool) -> int:
        """Move over emitted tokens; returns how many of them count.

        Args:
            ended: the last token is an id that ended the request.

        Raises:
            RuntimeError: a token that its row's mask forbade.
        """
        if self._faulty_row is not None and self._faulty_row[0] < len(tokens):  # drawn from the row that failed
            self.fault = self._faulty_row[1]
            return len(tokens)
        text = tokens[:-1] if ended else tokens
        kept = self._matcher.legal(text)
        if self._matcher.fault is not None:
            self.fault = self._matcher.fault
            return len(tokens)
        self._matcher.consume(text[:kept])
        if self._matcher.fault is not None:  # legal, but the library gave up on the state behind it
            self.fault = self._matcher.fault
            return len(tokens)
        self._generated += kept
        if kept == len(text) and ended:
            self._generated += 1
        elif not self._can_end(0) and self._matcher.at_end:
            self.finished = True
            return kept
        if kept < len(text):
            raise RuntimeError(f"Token {text[kept]} was emitted although its mask forbade it.")
        return len(tokens)

    def _text(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens before the first that ends the request."""
        return next((tokens[:index] for index, token in enumerate(tokens) if token in self._ends), tokens)

    def _can_end(self, ahead: int) -> bool:
        """Whether an end id can be drawn `ahead` tokens after the committed ones."""
        return bool(self._ends) and self._generated + ahead >= self._min_tokens

    def _mask_row(self, cursor: Matcher, index: int, row: MaskRow) -> None:
        cursor.allow(row)
        if cursor.may_end and self._can_end(index):
            bits = row.view(np.uint32)
            for id in self._ends:
                bits[id >> 5] |= np.uint32(1 << (id & 31))
        fault = cursor.fault
        if not row.any():
            if fault is None and not cursor.may_end:
                fault = "no token of this vocabulary can continue the text"
            row[:] = -1
        if fault is not None and self._faulty_row is None:
            self._faulty_row = (index, fault)
