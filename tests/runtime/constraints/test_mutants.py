"""Broken constraints: each must fail the very test that guards what it breaks."""

from collections.abc import Callable

import pytest

from flare.runtime.constraints import AfterMarker, Constraint
from flare.runtime.constraints.grammar import GrammarMatcher
from tests.runtime.constraints import test_constraint

Patch = Callable[[pytest.MonkeyPatch], None]


def reuse_one_mask(patch: pytest.MonkeyPatch) -> None:
    real = Constraint.mask

    def mask(self, rows, drafts=()):
        real(self, rows, drafts)
        rows[1 : len(drafts) + 1] = rows[0]

    patch.setattr(Constraint, "mask", mask)


def leave_the_bonus_row_open(patch: pytest.MonkeyPatch) -> None:
    real = Constraint.mask

    def mask(self, rows, drafts=()):
        real(self, rows, drafts)
        rows[len(drafts)] = -1

    patch.setattr(Constraint, "mask", mask)


def advance_over_drafts(patch: pytest.MonkeyPatch) -> None:
    real = Constraint.mask

    def mask(self, rows, drafts=()):
        real(self, rows, drafts)
        self._matcher.consume(drafts)

    patch.setattr(Constraint, "mask", mask)


def offer_illegal_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Constraint, "drafts", lambda self, copied, limit: list(copied[:limit]))


def allow_the_end_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrammarMatcher, "may_end", True)


def consume_the_end(patch: pytest.MonkeyPatch) -> None:
    real = Constraint.commit
    patch.setattr(Constraint, "commit", lambda self, tokens, ended: real(self, tokens, False))


def ignore_min_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Constraint, "_can_end", lambda self, ahead: bool(self._ends))


def switch_on_after_the_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AfterMarker, "_free", lambda self, tokens: 0 if self._on else len(tokens))


def never_switch_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AfterMarker, "_free", lambda self, tokens: len(tokens))
    patch.setattr(AfterMarker, "allow", lambda self, row: row.fill(-1))


def third_is_corrected() -> None:
    test_constraint.test_a_copy_is_cut_at_its_first_illegal_token_and_the_third_row_is_corrected_to_a_digit()


def rows_have_their_own() -> None:
    test_constraint.test_every_row_has_the_mask_of_its_own_prefix()


def nothing_moves() -> None:
    test_constraint.test_tentative_rows_never_move_the_matcher()


def rejected_drafts() -> None:
    test_constraint.test_rejected_drafts_leave_no_trace()


def ends_where_whole() -> None:
    test_constraint.test_an_end_is_allowed_exactly_where_the_text_is_whole()


def end_counts_once() -> None:
    test_constraint.test_the_end_is_counted_once_and_never_consumed()


def min_tokens_hold() -> None:
    test_constraint.test_min_tokens_keep_the_end_out_of_rows_before_them()


def marker_inside_a_block() -> None:
    test_constraint.test_a_marker_switches_the_grammar_on_inside_a_block("so</think>7")


def marker_cuts_copies() -> None:
    test_constraint.test_a_copy_that_breaks_the_grammar_behind_the_marker_is_cut_there()


MUTANTS: list[tuple[Patch, Callable[[], None]]] = [
    (reuse_one_mask, rows_have_their_own),
    (leave_the_bonus_row_open, third_is_corrected),
    (leave_the_bonus_row_open, rows_have_their_own),
    (advance_over_drafts, nothing_moves),
    (advance_over_drafts, rejected_drafts),
    (offer_illegal_copies, third_is_corrected),
    (allow_the_end_anywhere, ends_where_whole),
    (consume_the_end, end_counts_once),
    (ignore_min_tokens, min_tokens_hold),
    (switch_on_after_the_block, marker_cuts_copies),
    (never_switch_on, marker_inside_a_block),
]


@pytest.mark.parametrize(("mutant", "guard"), MUTANTS, ids=lambda part: part.__name__)
def test_the_mutant_fails_its_guard(mutant, guard):
    guard()
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        # the library panics or raises where a mutant breaks its rules: any failure of the guard is red
        with pytest.raises((AssertionError, RuntimeError, IndexError, ValueError)):
            guard()
