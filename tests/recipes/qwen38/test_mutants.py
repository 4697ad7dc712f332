"""Broken drafters and rounds of the whole small model: each must fail the test that guards what it breaks.

Mutants inside a layer (tags, rings, hashes, norms, commits) stand beside the layers' own tests.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from flare.rounds import prefill, speculative
from recipes.qwen38.drafter import Drafter
from recipes.qwen38.target import Target
from tests.recipes.qwen38 import test_golden, test_rounds

Mutant = Callable[[pytest.MonkeyPatch], None]


def golden_drafts() -> None:
    test_golden.test_recursive_drafts_after_the_prompt_are_the_golden_ones()


def single_steps() -> None:
    test_rounds.test_width_one_follows_width_eight_after_all_or_nothing(7)


def hidden_after_the_mixer(patch: pytest.MonkeyPatch) -> None:
    """The collapsed vector repeated over the streams, instead of the residual before the mixer."""
    real = Target._run

    def run(self, rows, step):
        hidden = real(self, rows, step)
        return replace(hidden, feedback=hidden.output.repeat(1, self.geometry.streams))

    patch.setattr(Target, "_run", run)


def unshifted_ids(patch: pytest.MonkeyPatch) -> None:
    """Pair i with x[i] instead of x[i + 1]."""
    real = prefill._chunk_pairs

    def pairs(rows, hidden, tail):
        right = real(rows, hidden, tail)
        return replace(right, rows=replace(right.rows, tokens=rows.tokens))

    patch.setattr(prefill, "_chunk_pairs", pairs)


def shifted_positions(patch: pytest.MonkeyPatch) -> None:
    """Pair i at position i + 1."""
    real = Drafter.absorb

    def absorb(self, pairs):
        real(self, replace(pairs, rows=replace(pairs.rows, positions=pairs.rows.positions + 1)))

    patch.setattr(Drafter, "absorb", absorb)


def absorb_the_recursive_hidden(patch: pytest.MonkeyPatch) -> None:
    """Pairs after the first from the draft layer's own residual instead of the target's."""
    real = speculative.committed_pairs

    def pairs(tail, verified, emission, inputs):
        right = real(tail, verified, emission, inputs)
        return replace(right, feedback=right.feedback[:, :1].expand_as(right.feedback))

    patch.setattr(speculative, "committed_pairs", pairs)


def commit_one_row_less(patch: pytest.MonkeyPatch) -> None:
    real = Target.commit
    patch.setattr(
        Target,
        "commit",
        lambda self, rows, emitted, boundary=None: real(self, rows, (emitted - 1).clamp_min(0), boundary),
    )


def commit_every_row(patch: pytest.MonkeyPatch) -> None:
    real = Target.commit
    patch.setattr(Target, "commit", lambda self, rows, emitted, boundary=None: real(self, rows, rows.counts, boundary))


def rejected() -> None:
    test_rounds.test_width_one_follows_width_eight_after_all_or_nothing(0)


@pytest.mark.parametrize(
    ("mutant", "guard"),
    [
        (hidden_after_the_mixer, golden_drafts),
        (unshifted_ids, golden_drafts),
        (shifted_positions, golden_drafts),
        (absorb_the_recursive_hidden, single_steps),
        (commit_one_row_less, single_steps),
        (commit_every_row, rejected),
    ],
    ids=lambda function: function.__name__,
)
def test_the_mutant_is_caught(monkeypatch, mutant: Mutant, guard: Callable[[], None]):
    guard()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        guard()
